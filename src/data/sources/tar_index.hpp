// SPDX-License-Identifier: Apache-2.0
// The index of one tar shard: its samples (members grouped by name up to the first dot) in file
// order. It is built once from the headers and then kept in a small file beside the shard.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "data/sources/file.hpp"
#include "data/sources/index_file.hpp"
#include "data/sources/source.hpp"

namespace data {

// An index as it is built.
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

// True if another file, or other bytes, took the place of a shard. A new name or owner changes only
// one of inode and change time; another file in its place changes both. is_copy: `now` is of a
// staged copy, which has the original's size and time alone.
bool is_changed(const FileState& then, const FileState& now, bool is_copy = false);

// Returns the bytes of an index file:
//   a line that names the format; the bytes of the head; the shard's state; samples, extensions,
//   kinds and, for each group of 64 samples, its place and its checksum; a checksum of the head;
//   the groups, with the keys and the members of their samples.
// A reader checks and decodes the groups that it needs, so its cost does not grow with the shard.
std::string encode_tar_index(const TarIndex& index, const FileState& state);

// The head of an index: all but its samples.
struct TarIndexHead {
  // Samples that have the same extensions.
  struct Kind {
    std::vector<uint32_t> extensions;  // ascending
    int64_t samples = 0, first = 0;    // how many, and which is the first
  };
  FileState state{};
  int64_t samples = 0;
  std::vector<std::string> extensions;
  std::vector<Kind> kinds;
  uint64_t digest = 0;  // a hash of keys and members; the same for a copy of the shard
};

// An index file, mapped.
class TarIndexFile {
 public:
  struct Member {
    uint32_t extension = 0;
    int64_t offset = 0, size = 0;
  };
  struct Sample {
    std::string_view key;
    std::vector<Member> members;  // in the order of the shard
  };
  // Returns null if the bytes are no index, or if the head is damaged.
  static std::shared_ptr<const TarIndexFile> open(std::unique_ptr<IndexBytes> bytes);

  const TarIndexHead& head() const { return head_; }
  bool is_of(const File& shard) const { return head_.state == shard.state(); }
  int64_t bytes() const { return int64_t(bytes_->view().size()); }
  // Returns nothing if the sample's group is damaged. The key lives as long as this object.
  std::optional<Sample> find(int64_t sample) const;
  // Calls each(sample) for samples [begin, end), in order, until it returns false. Returns the
  // first sample that was not given: `end`, that after the last one, or the first of a damaged
  // group.
  using EachSample = std::function<bool(const Sample&)>;
  int64_t walk(int64_t begin, int64_t end, const EachSample& each) const;

 private:
  bool read_head();
  std::string_view group_bytes(size_t group) const;
  std::unique_ptr<IndexBytes> bytes_;
  TarIndexHead head_;
  std::string_view groups_;  // places and checksums
  std::string_view body_;
};

// Opens the index file if there is a valid one; otherwise builds and writes it. Any number of
// processes may do this at once. `in_file` is false if no place could be written.
struct OpenedIndex {
  std::shared_ptr<const TarIndexFile> index;
  bool in_file = false;
};
OpenedIndex open_tar_index(const std::string& shard_path, const OpenContext& context);
// Builds the index anew, whatever the index file holds, and writes it.
OpenedIndex renew_tar_index(const std::string& shard_path, const OpenContext& context);
// Opens the index file if it has this digest; returns null otherwise. Does not touch the shard.
std::shared_ptr<const TarIndexFile> find_tar_index(const std::string& shard_path, uint64_t digest,
                                                   const OpenContext& context);

}  // namespace data
