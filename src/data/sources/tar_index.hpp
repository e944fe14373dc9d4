// SPDX-License-Identifier: Apache-2.0
// What lies where in one tar shard: samples (members grouped by name up to the first dot) in file
// order. Made once by walking the headers, then kept in a small file beside the shard.
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
    uint32_t extension = 0;  // into `extensions`
    bool operator==(const Member&) const = default;
  };
  std::vector<std::string> keys;        // one per sample
  std::vector<std::string> extensions;  // "png", "seg.png"; without the first dot
  std::vector<Member> members;
  bool operator==(const TarIndex&) const = default;
};

// Key and extension of a member's name: "a/b.seg.png" is sample "a/b", extension "seg.png". None
// for names that belong to no sample (hidden files such as macOS' "._x", names without a dot).
std::optional<std::pair<std::string_view, std::string_view>> split_member_name(
    std::string_view name);

// Walks through the whole shard; `token` may ask to give up (base/cancel.hpp).
TarIndex build_tar_index(const File& shard, const std::stop_token& token = {});

// The text of an index file for this shard, and back; none if it is damaged or of another state of
// the shard.
std::string encode_tar_index(const TarIndex& index, const File& shard);
std::optional<TarIndex> decode_tar_index(std::string_view bytes, const File& shard);

// From the index file if there is a valid one, else built and written. Any number of processes may
// do this at once: files appear whole, by rename. Rank 0 warns of a shard without samples.
TarIndex load_tar_index(const std::string& shard_path, const OpenContext& context);

// Places of the index file, the preferred one first.
std::vector<std::string> tar_index_paths(const std::string& shard_path, const OpenContext& context);

}  // namespace data
