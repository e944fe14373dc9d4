// SPDX-License-Identifier: Apache-2.0
#include "data/sources/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/text.hpp"
#include "data/sources/look_alike.hpp"

namespace data {
namespace {

int64_t nanoseconds(const struct timespec& time) {
  return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::optional<FileState> state_at(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileState{info.st_size, nanoseconds(info.st_mtim), int64_t(info.st_ino),
                   nanoseconds(info.st_ctim)};
}

// With O_NONBLOCK, opening a pipe without a writer does not block. The flag changes nothing for a
// regular file.
File::File(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (const int number = errno; fd_ < 0)
    throw Unreadable(fmt::format("cannot open '{}': {}{}", path, std::strerror(number),
                                 number == ENOENT ? look_alike_hint(path) : ""));
  struct stat info;
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw Unreadable(fmt::format("'{}' is not a regular file", path));
  }
  size_ = info.st_size;
  modified_ns_ = nanoseconds(info.st_mtim);
  number_ = int64_t(info.st_ino);
  changed_ns_ = nanoseconds(info.st_ctim);
}

File::~File() { ::close(fd_); }

bool File::has_changed() const {
  struct stat info;
  if (::fstat(fd_, &info) != 0)
    throw Unreadable(
        fmt::format("cannot check whether '{}' has changed: {}", path_, std::strerror(errno)));
  return info.st_size != size_ || nanoseconds(info.st_mtim) != modified_ns_;
}

void File::read(int64_t offset, void* out, size_t count) const {
  char* at = static_cast<char*>(out);
  while (count > 0) {
    ssize_t got = ::pread(fd_, at, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Unreadable(
          fmt::format("cannot read '{}' at byte {}: {}", path_, offset, std::strerror(errno)));
    if (got == 0)
      throw Unreadable(
          fmt::format("'{}' ends at byte {}, and {} bytes are missing: was it cut while in use?",
                      path_, offset, count));
    at += got;
    offset += got;
    count -= size_t(got);
  }
}

bool is_image_file(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0 || name[dot - 1] == '/') return false;
  const std::vector<std::string> all = base::split(kImageEndings, ',');
  return std::any_of(all.begin(), all.end(),
                     [&](const std::string& one) { return has_ending(name, base::trim(one)); });
}

bool has_ending(std::string_view name, std::string_view ending) {
  return name.size() >= ending.size() &&
         std::ranges::equal(name.substr(name.size() - ending.size()), ending, {},
                            [](char c) { return char(std::tolower(uint8_t(c))); });
}

bool is_of_system(std::string_view name) {
  constexpr std::string_view kNames[] = {"__MACOSX",
                                         "__pycache__",
                                         "@eaDir",
                                         "@Recycle",
                                         "#recycle",
                                         "lost+found",
                                         "RECYCLER",
                                         "~snapshot",
                                         "#snapshot",
                                         "@tmp",
                                         "System Volume Information",
                                         "Network Trash Folder",
                                         "Temporary Items"};
  constexpr std::string_view kInAnyCapitals = "$recycle.bin";
  return std::ranges::count(kNames, name) > 0 ||
         (name.size() == kInAnyCapitals.size() && has_ending(name, kInAnyCapitals));
}

}  // namespace data
