// SPDX-License-Identifier: Apache-2.0
// The index of one tar shard: its samples (members grouped by name up to the first dot) in file
// order. It is built once from the headers and then kept in a small file beside the shard.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "data/sources/file.hpp"
#include "data/sources/source.hpp"

namespace data {

struct TarIndex {
  struct Member {
    int64_t offset = 0, size = 0;
    uint32_t sample = 0;     // number of the sample in the shard
    uint32_t extension = 0;  // index into `extensions`
    bool operator==(const Member&) const = default;
  };
  std::vector<std::string> keys;        // one per sample
  std::vector<std::string> extensions;  // "png", "seg.png"; in lower case, without the first dot
  std::vector<Member> members;
  bool operator==(const TarIndex&) const = default;
};

// Splits a member's name into key and extension: "a/b.seg.PNG" is sample "a/b", extension
// "seg.png", as in WebDataset. Returns nothing for a name that belongs to no sample (hidden files
// such as macOS' "._x", files in hidden folders, names without a dot).
std::optional<std::pair<std::string_view, std::string>> split_member_name(std::string_view name);

// Reads the headers of the whole shard; `token` may request to give up (base/cancel.hpp).
TarIndex build_tar_index(const File& shard, const std::stop_token& token = {});

// Convert an index to the text of an index file and back. Decoding returns nothing if the text is
// damaged or belongs to another state of the shard.
std::string encode_tar_index(const TarIndex& index, const File& shard);
std::optional<TarIndex> decode_tar_index(std::string_view bytes, const File& shard);

// Reads the index file if there is a valid one; otherwise builds and writes it. Any number of
// processes may do this at once: files appear whole, by rename. Rank 0 warns of a shard without
// samples.
TarIndex load_tar_index(const std::string& shard_path, const OpenContext& context);

// Returns the paths of the index file, the preferred one first.
std::vector<std::string> tar_index_paths(const std::string& shard_path, const OpenContext& context);

}  // namespace data
