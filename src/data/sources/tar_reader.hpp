// SPDX-License-Identifier: Apache-2.0
// Reads the headers of an uncompressed tar file (ustar, pax, GNU) and finds the bytes of each
// regular file. Random access needs only these offsets, which libarchive does not give.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/sources/file.hpp"

namespace data {

struct TarMember {
  std::string name;
  int64_t header = 0;  // offset of its first header
  int64_t offset = 0;  // offset of its bytes
  int64_t size = 0;
};

// True if the name of a file or of one of its folders begins with a dot, as in macOS' "._x".
bool is_hidden_member(std::string_view name);

class TarReader {
 public:
  explicit TarReader(const File& file);
  // Finds the next regular file; directories are skipped, and so are hidden links, pipes and
  // devices. Returns false at the archive's end mark.
  // Throws Error(Exit::data) with file, member and offset for a broken archive: wrong checksum, cut
  // file, missing end mark, compressed file, links.
  bool next(TarMember& member);

 private:
  struct Header;
  [[noreturn]] void fail(int64_t at, const std::string& what) const;
  const char* block(int64_t at);  // returns 512 bytes
  Header parse(int64_t at);
  std::string text(int64_t at, int64_t size, const char* what);
  void read_pax(int64_t at, int64_t size, std::string& name, int64_t& file_size, bool& has_size);
  void check_end(int64_t at);

  const File& file_;
  int64_t at_ = 0;
  std::string last_;          // name of the previous member, for messages
  std::vector<char> window_;  // members are often small: one read serves several headers
  int64_t window_begin_ = 0;
};

}  // namespace data
