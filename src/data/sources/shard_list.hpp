// SPDX-License-Identifier: Apache-2.0
// All shards of a set, without their samples: some bytes for each shard, however many samples it
// has.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/sources/tar_index.hpp"

namespace data {

class ShardList {
 public:
  struct Shard {
    FileState state{};
    uint64_t digest = 0;
    int64_t first = 0, samples = 0;  // number of its first sample in the set
    size_t kinds = 0;                // where its kinds begin
  };
  // Samples of a shard that have the same extensions.
  struct Kind {
    uint32_t number = 0;             // index into kinds()
    int64_t samples = 0, first = 0;  // how many, and which of the shard is the first
  };

  // Adds the next shard, or the shards of another list.
  void add(const TarIndexHead& head);
  void add(const ShardList& next);

  // The bytes of a file that holds this list for these shards, and back. Decoding returns nothing
  // if the bytes are damaged or belong to other shards.
  std::string encode(std::span<const std::string> paths) const;
  static std::optional<ShardList> decode(std::string_view bytes,
                                         std::span<const std::string> paths);

  int64_t samples() const { return samples_; }
  const std::vector<Shard>& shards() const { return shards_; }
  // Returns the shard of a sample, and the sample's number in it.
  std::pair<size_t, int64_t> find(int64_t sample) const;

  const std::vector<std::string>& extensions() const { return extensions_; }
  // The sets of extensions that samples have, as indices into extensions().
  const std::vector<std::vector<uint32_t>>& kinds() const { return kinds_; }
  // Returns the first of `choices` that samples of a kind have, or "".
  const std::string& choice(const std::vector<uint32_t>& kind,
                            const std::vector<std::string>& choices) const;
  // Returns how many samples have none of `choices`, and the first of them, or -1.
  std::pair<int64_t, int64_t> lacking(const std::vector<std::string>& choices) const;

 private:
  uint32_t extension(const std::string& name);
  std::span<const Kind> kinds_of(size_t shard) const;

  std::vector<Shard> shards_;
  std::vector<Kind> of_shards_;
  std::vector<std::string> extensions_;
  std::vector<std::vector<uint32_t>> kinds_;
  // The numbers of these extensions and kinds.
  std::map<std::string, uint32_t> extension_numbers_;
  std::map<std::vector<uint32_t>, uint32_t> kind_numbers_;
  int64_t samples_ = 0;
};

}  // namespace data
