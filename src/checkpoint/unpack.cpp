// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/unpack.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <memory>

#include "base/error.hpp"

namespace checkpoint {

bool built_with_archive() { return true; }

Unpacked unpack_zstd(const std::string& packed, int64_t size) {
  struct Close {
    void operator()(archive* a) const { archive_read_free(a); }
  };
  std::unique_ptr<archive, Close> reader(archive_read_new());
  CHECK(reader, "libarchive gives no reader");
  archive_entry* entry = nullptr;
  // ARCHIVE_WARN means a libarchive without zstd, which would start another program.
  if (archive_read_support_filter_zstd(reader.get()) != ARCHIVE_OK)
    return {"", "this libarchive was built without zstd"};
  if (archive_read_support_format_raw(reader.get()) != ARCHIVE_OK ||
      archive_read_open_memory(reader.get(), packed.data(), packed.size()) != ARCHIVE_OK ||
      archive_read_next_header(reader.get(), &entry) != ARCHIVE_OK ||
      archive_filter_code(reader.get(), 0) != ARCHIVE_FILTER_ZSTD)
    return {"", "is not compressed by zstd, or was cut"};
  Unpacked out;
  // Memory grows with the values that the frame really holds. One byte more shows a longer frame.
  while (int64_t(out.bytes.size()) <= size) {
    const size_t have = out.bytes.size();
    const int64_t piece = std::min<int64_t>(size + 1 - int64_t(have), int64_t{16} << 20);
    out.bytes.resize(have + size_t(piece));
    const la_ssize_t n = archive_read_data(reader.get(), out.bytes.data() + have, size_t(piece));
    if (n < 0) return {"", "is damaged"};
    out.bytes.resize(have + size_t(n));
    if (n == 0) break;
  }
  return out;
}

}  // namespace checkpoint
