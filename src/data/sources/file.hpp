// SPDX-License-Identifier: Apache-2.0
// A file opened for reading at any offset, by any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace data {

// The file system failed, or a file changed while it was in use. The requested sample is not at
// fault.
class Unreadable : public base::Error {
 public:
  explicit Unreadable(const std::string& text) : base::Error(base::Exit::data, text) {}
};

// The facts that tell a file from another one in its place: size, time of modification, inode
// number, and the time of the inode's last change, which no program can set.
using FileState = std::array<int64_t, 4>;
// Returns nothing if there is no such file. Does not open it.
std::optional<FileState> state_at(const std::string& path);

class File {
 public:
  // Throws Unreadable if the file cannot be opened or is not a regular file.
  explicit File(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // at the time of opening
  int64_t modified_ns() const { return modified_ns_; }
  // Identify a file that replaced another one of the same size and modification time: its inode
  // number, and the time of the inode's last change, which no program can set.
  int64_t number() const { return number_; }
  int64_t changed_ns() const { return changed_ns_; }
  FileState state() const { return {size_, modified_ns_, number_, changed_ns_}; }
  bool has_changed() const;  // true if size or time changed since opening
  // Reads exactly `count` bytes; throws Unreadable if the file ends earlier.
  void read(int64_t offset, void* out, size_t count) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0, modified_ns_ = 0, number_ = 0, changed_ns_ = 0;
};

// Returns the folder that a file is in: "." for a name alone.
std::string folder_of(const std::string& path);

// The endings of image files in folders, for messages.
inline constexpr const char* kImageEndings = ".jpg, .jpeg, .png, .webp, .gif";
// True if a file's name has one of these endings, in upper or lower case.
bool is_image_file(std::string_view name);
// True if a file's name has this ending. `ending` is in lower case; the name may have capitals.
bool has_ending(std::string_view name, std::string_view ending);

// True for names of folders that systems create beside people's own: in macOS's zip files, for
// bins, snapshots and thumbnails, and by file systems.
bool is_of_system(std::string_view name);

}  // namespace data
