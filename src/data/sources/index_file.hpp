// SPDX-License-Identifier: Apache-2.0
// Small files that this program keeps beside the shards: whole on disk, by rename, and mapped to be
// read, so that the ranks of a node share their pages.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/sources/source.hpp"

namespace data {

// Bytes of a file that is mapped, or of a text.
class IndexBytes {
 public:
  explicit IndexBytes(std::string text) : text_(std::move(text)), view_(text_) {}
  ~IndexBytes();
  IndexBytes(const IndexBytes&) = delete;
  // Returns null if there is no such file, or if it cannot be mapped.
  static std::unique_ptr<IndexBytes> map(const std::string& path);
  std::string_view view() const { return view_; }
  // Lets go of the memory until the bytes are read again.
  void release() const;

 private:
  IndexBytes() = default;
  std::string text_;
  std::string_view view_;
};

// Writes the whole file or nothing, with the permissions that the user's umask leaves. Returns
// false if this place cannot be written. Any number of processes may write one file at once.
bool write_index_file(const std::string& path, const std::string& bytes);

// Returns a hash of the path as an absolute one: files of different folders may have one name.
std::string path_hash(const std::string& path);

// Returns where a file may be, the preferred place first: `beside` the data, or `name` in
// context.index_dir; then `name` in context.run_index_dir.
std::vector<std::string> index_places(const std::string& beside, const std::string& name,
                                      const OpenContext& context);
// Likewise for a file `name` in the folder of the data; "" = no such folder.
std::vector<std::string> index_places_in(const std::string& folder, const std::string& name,
                                         const OpenContext& context);

// Writes the file to the first place that takes it. Returns that place, or "".
std::string write_index_file(const std::vector<std::string>& places, const std::string& bytes);

}  // namespace data
