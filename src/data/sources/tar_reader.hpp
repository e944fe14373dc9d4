// SPDX-License-Identifier: Apache-2.0
// Walks the headers of an uncompressed tar file (ustar, pax, GNU) and says where each regular
// file's bytes lie. libarchive reads the formats too but does not tell data offsets, and random
// access needs nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sources/file.hpp"

namespace data {

struct TarMember {
  std::string name;
  int64_t header = 0;  // where its first header lies
  int64_t offset = 0;  // where its bytes lie
  int64_t size = 0;
};

class TarReader {
 public:
  explicit TarReader(const File& file);
  // The next regular file; directories are passed over. False at the archive's end mark.
  // Error(Exit::data) with file, member and offset for anything broken: wrong checksum, cut file,
  // missing end mark, compressed file, links.
  bool next(TarMember& member);

 private:
  struct Header;
  [[noreturn]] void fail(int64_t at, const std::string& what) const;
  const char* block(int64_t at);  // 512 bytes
  Header parse(int64_t at);
  std::string text(int64_t at, int64_t size, const char* what);
  void read_pax(int64_t at, int64_t size, std::string& name, int64_t& file_size, bool& has_size);
  void check_end(int64_t at);

  const File& file_;
  int64_t at_ = 0;
  std::string last_;          // name of the member before, for messages
  std::vector<char> window_;  // members are often small: one read serves several headers
  int64_t window_begin_ = 0;
};

}  // namespace data
