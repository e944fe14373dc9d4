// SPDX-License-Identifier: Apache-2.0
#include "data/sources/index_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/clock.hpp"
#include "base/hash.hpp"

namespace data {
namespace {

// Creates a file beside `path` under a name of its own. Returns its descriptor, or -1, and the
// name.
int create_beside(const std::string& path, std::string& name) {
  static std::atomic<uint64_t> calls{0};
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz234567";
  for (int tries = 0; tries < 100; ++tries) {
    const std::array<uint64_t, 3> draw{uint64_t(::getpid()), calls++,
                                       std::bit_cast<uint64_t>(base::now_s())};
    uint64_t bits = base::xxh3(draw.data(), sizeof draw);
    name = path + ".";
    for (int i = 0; i < 6; ++i, bits >>= 5) name += kLetters[bits & 31];
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

}  // namespace

IndexBytes::~IndexBytes() {
  if (text_.empty() && !view_.empty()) ::munmap(const_cast<char*>(view_.data()), view_.size());
}

void IndexBytes::release() const {
  if (text_.empty() && !view_.empty())
    ::madvise(const_cast<char*>(view_.data()), view_.size(), MADV_DONTNEED);
}

std::unique_ptr<IndexBytes> IndexBytes::map(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  std::unique_ptr<IndexBytes> out(new IndexBytes);
  struct stat info {};
  void* at = MAP_FAILED;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
    at = ::mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  if (at == MAP_FAILED) return nullptr;
  out->view_ = {static_cast<const char*>(at), size_t(info.st_size)};
  return out;
}

bool write_index_file(const std::string& path, const std::string& bytes) {
  std::string temporary;
  const int fd = create_beside(path, temporary);
  if (fd < 0) return false;
  bool good = true;
  for (size_t at = 0; good && at < bytes.size();) {
    ssize_t n = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    good = n > 0;
    at += size_t(std::max<ssize_t>(n, 0));
  }
  good = ::close(fd) == 0 && good;
  good = good && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (!good) ::unlink(temporary.c_str());
  return good;
}

std::string path_hash(const std::string& path) {
  std::error_code problem;
  const std::string absolute = std::filesystem::absolute(path, problem).lexically_normal().string();
  return fmt::format("{:016x}", base::xxh3(absolute));
}

std::vector<std::string> index_places(const std::string& beside, const std::string& name,
                                      const OpenContext& context) {
  std::vector<std::string> places{
      context.index_dir.empty() ? beside : fmt::format("{}/{}", context.index_dir, name)};
  if (!context.run_index_dir.empty())
    places.push_back(fmt::format("{}/{}", context.run_index_dir, name));
  return places;
}

std::vector<std::string> index_places_in(const std::string& folder, const std::string& name,
                                         const OpenContext& context) {
  std::vector<std::string> places = index_places(folder + "/" + name, name, context);
  if (folder.empty() && context.index_dir.empty()) places.erase(places.begin());
  return places;
}

std::string write_index_file(const std::vector<std::string>& places, const std::string& bytes) {
  for (const std::string& path : places) {
    // The folder of the data exists; the others are this program's.
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    if (write_index_file(path, bytes)) return path;
  }
  return "";
}

}  // namespace data
