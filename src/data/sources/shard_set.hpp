// SPDX-License-Identifier: Apache-2.0
// The tar shards of a set: the list of them, their indexes and their files. Of indexes and files,
// those are open whose samples were due lately.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "data/sources/recent.hpp"
#include "data/sources/shard_list.hpp"

namespace data {

class ShardSet {
 public:
  // `pattern` is what the deck calls the shards. Takes the list of a large set from its file or
  // from context.shares; otherwise looks at every shard, and indexes it if it has no index.
  ShardSet(std::vector<std::string> paths, const std::string& pattern, const OpenContext& context);

  // Before the ranks open a set that lacks a list, each of them lists its share of the shards.
  // list_share returns this share as text, or "" if the ranks must list all by themselves, as they
  // must to report an error.
  static bool lacks_list(const std::vector<std::string>& paths, const std::string& pattern,
                         const OpenContext& context);
  static std::string list_share(const std::vector<std::string>& paths, const OpenContext& context,
                                int rank, int ranks);

  const std::vector<std::string>& paths() const { return paths_; }
  const ShardList& list() const { return list_; }

  struct Found {
    size_t shard = 0;
    std::shared_ptr<const TarIndexFile> index;  // the sample's key lives there
    TarIndexFile::Sample sample;
  };
  // Any thread may call. Throws Unreadable if the shard has changed since it was listed.
  Found find(int64_t sample) const;
  Found find(size_t shard, int64_t sample) const;
  // Calls each(shard, head, sample) for samples [begin, end), in order, until it returns false.
  using EachSample =
      std::function<bool(const File& shard, const TarIndexHead&, const TarIndexFile::Sample&)>;
  void walk(int64_t begin, int64_t end, const EachSample& each) const;
  std::shared_ptr<const File> open(size_t shard) const;

 private:
  struct OpenShard;
  // A list that was read from this file.
  struct Read {
    ShardList list;
    std::string path;
  };
  static std::optional<Read> read_list(const std::vector<std::string>& paths,
                                       const std::string& pattern, const OpenContext& context);
  bool take_shares(const std::string& pattern, const OpenContext& context);
  std::shared_ptr<const TarIndexFile> open_index(size_t shard) const;
  std::shared_ptr<const TarIndexFile> renew_index(size_t shard) const;
  bool forget_list() const;
  // Forgets the list if `look` finds a shard unreadable.
  template <class Look>
  auto forgetting_list(Look look) const;
  [[noreturn]] void fail_changed(size_t shard) const;

  OpenContext context_;
  std::vector<std::string> paths_;
  ShardList list_;
  std::string list_path_;                                       // the file of the list; "" = none
  std::map<size_t, std::shared_ptr<const TarIndexFile>> kept_;  // indexes that are in no file
  mutable Recent<OpenShard> open_shards_;
  mutable Recent<const TarIndexFile> open_indexes_;
};

}  // namespace data
