// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/zip_members.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "io/files.hpp"

namespace checkpoint {
namespace {

// The bytes of a file, for as long as its directory is read.
class Mapping {
 public:
  explicit Mapping(const std::string& path) : file_(path, io::File::Mode::read) {
    size_ = size_t(file_.size());
    if (size_ == 0) base::fail(base::Exit::checkpoint, "is empty");
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_.descriptor(), 0);
    if (data_ == MAP_FAILED) base::fail(base::Exit::checkpoint, "cannot be mapped into memory");
  }
  ~Mapping() { ::munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  const char* data() const { return static_cast<const char*>(data_); }
  size_t size() const { return size_; }

 private:
  io::File file_;
  size_t size_ = 0;
  void* data_ = nullptr;
};

struct Close {
  void operator()(archive* a) const { archive_read_free(a); }
};

[[noreturn]] void broken(archive* a) {
  const char* why = archive_error_string(a);
  base::fail(base::Exit::checkpoint, "is not a zip archive, or was cut{}",
             why ? fmt::format(" ({})", why) : "");
}

// Returns where the bytes of the current member begin. libarchive returns stored bytes in place.
std::optional<int64_t> place_of(archive* a, const Mapping& file, int64_t bytes) {
  const std::string_view format = archive_format_name(a);
  if (!format.ends_with("(uncompressed)")) return {};
  if (bytes == 0) return 0;
  const void* data = nullptr;
  size_t size = 0;
  la_int64_t offset = 0;
  if (archive_read_data_block(a, &data, &size, &offset) != ARCHIVE_OK || offset != 0) broken(a);
  const std::uintptr_t at = std::uintptr_t(data), first = std::uintptr_t(file.data());
  if (at < first || at - first > file.size() || bytes > int64_t(file.size() - (at - first)))
    broken(a);
  return int64_t(at - first);
}

}  // namespace

std::vector<ZipMember> zip_members(const std::string& path) {
  const Mapping file(path);
  const std::unique_ptr<archive, Close> a(archive_read_new());
  CHECK(a, "libarchive gives no reader");
  if (archive_read_support_format_zip_seekable(a.get()) != ARCHIVE_OK ||
      archive_read_open_memory(a.get(), file.data(), file.size()) != ARCHIVE_OK)
    broken(a.get());
  std::vector<ZipMember> found;
  for (;;) {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(a.get(), &entry);
    if (result == ARCHIVE_EOF) return found;
    if (result != ARCHIVE_OK) broken(a.get());
    const char* name = archive_entry_pathname_utf8(entry);
    if (!name) name = archive_entry_pathname(entry);
    ZipMember member{.name = name ? name : "", .bytes = archive_entry_size(entry), .begins = {}};
    if (member.bytes < 0) broken(a.get());
    member.begins = place_of(a.get(), file, member.bytes);
    found.push_back(std::move(member));
  }
}

}  // namespace checkpoint
