// SPDX-License-Identifier: Apache-2.0
// Makes good and bad .npz and .safetensors files byte by byte, for tests of their readers.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tests {

inline void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::string safetensors(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

inline std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string out = std::string("\x93NUMPY") + version + '\0';
  uint32_t length = uint32_t(header.size());
  return out.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4) + header + data;
}
inline std::string npy_header(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

using Members = std::vector<std::pair<std::string, std::string>>;

inline std::string zip(const Members& members, bool deflate = false) {
  archive* a = archive_write_new();
  std::vector<char> memory(1 << 23);
  size_t used = 0;
  if (archive_write_set_format_zip(a) != ARCHIVE_OK ||
      archive_write_set_options(a, deflate ? "zip:compression=deflate" : "zip:compression=store") !=
          ARCHIVE_OK ||
      archive_write_set_bytes_in_last_block(a, 1) != ARCHIVE_OK ||
      archive_write_open_memory(a, memory.data(), memory.size(), &used) != ARCHIVE_OK)
    throw std::runtime_error("cannot write a zip");
  for (const auto& [name, content] : members) {
    archive_entry* e = archive_entry_new();
    archive_entry_set_pathname(e, name.c_str());
    archive_entry_set_size(e, int64_t(content.size()));
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0644);
    if (archive_write_header(a, e) != ARCHIVE_OK ||
        archive_write_data(a, content.data(), content.size()) != la_ssize_t(content.size()))
      throw std::runtime_error("cannot write a zip member");
    archive_entry_free(e);
  }
  archive_write_close(a);
  archive_write_free(a);
  return {memory.data(), used};
}

}  // namespace tests
