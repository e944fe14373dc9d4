// SPDX-License-Identifier: Apache-2.0
#include "data/sources/tar_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "base/pointer_file.hpp"
#include "data/sources/safe_name.hpp"

namespace data {
namespace {

using base::Exit;
constexpr int64_t kBlock = 512;
constexpr int64_t kWindow = 8 * 1024;
constexpr int64_t kLargestExtension = 1 << 20;  // bytes of a long name or pax header
// Maximum number of zeros after the end mark: writers fill up their last record with zeros.
constexpr int64_t kTail = int64_t{16} << 20;

// Parses a numeric field: octal text, or base 256 if the top bit is set (GNU, for sizes from 8
// GiB). Returns nothing if it is neither.
std::optional<int64_t> number(const char* field, size_t width) {
  if (uint8_t(field[0]) & 0x80) {
    if (uint8_t(field[0]) != 0x80) return std::nullopt;  // negative, or beyond 64 bits
    uint64_t value = 0;
    for (size_t i = 1; i < width; ++i) {
      if (value >> 55) return std::nullopt;
      value = value << 8 | uint8_t(field[i]);
    }
    return int64_t(value);
  }
  std::string_view digits(field, width);
  digits = digits.substr(0, std::min(digits.find('\0'), width));
  size_t begin = digits.find_first_not_of(' ');
  if (begin == digits.npos) return 0;
  digits = digits.substr(begin, digits.find_last_not_of(' ') - begin + 1);
  int64_t value = 0;
  auto [stop, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
  if (problem != std::errc() || stop != digits.data() + digits.size() || value < 0)
    return std::nullopt;
  return value;
}

std::string field_text(const char* field, size_t width) {
  return std::string(field, strnlen(field, width));
}

bool all_zero(const char* p, int64_t count) {
  return std::all_of(p, p + count, [](char c) { return c == 0; });
}

int64_t padded(int64_t size) { return (size + kBlock - 1) / kBlock * kBlock; }

const char* compression(std::string_view head) {
  struct Magic {
    std::string_view bytes;
    const char* name;
  };
  for (auto [bytes, name] : {Magic{"\x1f\x8b", "gzip"}, Magic{"\x28\xb5\x2f\xfd", "zstd"},
                             Magic{"\xfd"
                                   "7zXZ",
                                   "xz"},
                             Magic{"BZh", "bzip2"}})
    if (head.starts_with(bytes)) return name;
  return nullptr;
}

// Returns why a member that is not a plain file is refused, with a remedy.
std::string refusal(char type, std::string_view name) {
  switch (type) {
    case '1':  // GNU tar writes a file with several names once, and hard links for the others.
    case '2':
      return fmt::format(
          "member '{}' is {} link (type '{}'): pack plain files (tar --dereference "
          "--hard-dereference)",
          name, type == '1' ? "a hard" : "a symbolic", type);
    case 'S':
      return fmt::format("'{}' is a sparse member: pack it again without --sparse", name);
    case 'M':
      return fmt::format(
          "member '{}' begins in another volume: unpack all volumes (tar --multi-volume) and pack "
          "one shard",
          name);
    default:
      return fmt::format(
          "member '{}' is not a plain file (type '{}'): pack the shard again without it", name,
          type);
  }
}

// True for members that describe only the archive: its label, and folders, including those with a
// list of files in GNU tar's incremental archives.
bool is_no_content(char type, std::string_view name) {
  return type == '5' || type == 'D' || type == 'V' || (type == '\0' && name.ends_with('/'));
}

}  // namespace

bool is_hidden_member(std::string_view name) {
  for (size_t at = 0; at != name.npos && at < name.size(); at = name.find('/', at)) {
    if (name[at] == '/') ++at;
    const std::string_view part = name.substr(at, name.find('/', at) - at);
    if ((part.starts_with('.') && part != ".") || is_of_system(part)) return true;
  }
  return false;
}

struct TarReader::Header {
  bool end = false;
  char type = '0';
  std::string name;
  int64_t size = 0;
};

TarReader::TarReader(const File& file) : file_(file) {
  if (file.size() == 0) base::fail(Exit::data, "'{}' is empty, not a tar file", file.path());
  char head[64] = "";
  file.read(0, head, size_t(std::min<int64_t>(file.size(), sizeof head)));
  if (const std::string pointer = base::pointer_problem({head, sizeof head}); !pointer.empty())
    base::fail(Exit::data, "'{}': {}", file.path(), pointer);
  if (const char* name = compression({head, sizeof head}))
    base::fail(Exit::data,
               "'{}' is compressed ({}); samples are read at random places, which needs plain tar: "
               "unpack it once",
               file.path(), name);
}

void TarReader::fail(int64_t at, const std::string& what) const {
  base::fail(Exit::data, "'{}' at byte {}{}: {}", file_.path(), at,
             last_.empty() ? "" : fmt::format(", after member '{}'", last_), what);
}

const char* TarReader::block(int64_t at) {
  if (at + kBlock > file_.size())
    fail(at, fmt::format("the file of {} bytes ends without the tar end mark: it was cut, or its "
                         "writer did not finish",
                         file_.size()));
  if (window_.empty() || at < window_begin_ ||
      at + kBlock > window_begin_ + int64_t(window_.size())) {
    window_.resize(size_t(std::min(kWindow, file_.size() - at)));
    window_begin_ = at;
    file_.read(at, window_.data(), window_.size());
  }
  return window_.data() + (at - window_begin_);
}

TarReader::Header TarReader::parse(int64_t at) {
  const char* b = block(at);
  Header h;
  if (all_zero(b, kBlock)) {
    h.end = true;
    return h;
  }
  // Sum of all bytes with the checksum field as spaces; very old writers summed signed bytes.
  int64_t plain = 0, with_sign = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    char c = i >= 148 && i < 156 ? ' ' : b[i];
    plain += uint8_t(c);
    with_sign += int8_t(c);
  }
  std::optional<int64_t> sum = number(b + 148, 8);
  if (!sum || (*sum != plain && *sum != with_sign))
    fail(at, at == 0 ? "not a tar file" : "broken tar header (wrong checksum)");
  h.type = b[156];
  std::optional<int64_t> size = number(b + 124, 12);
  h.name = field_text(b, 100);
  if (!size) fail(at, fmt::format("member '{}' has no valid size", h.name));
  h.size = *size;
  // ustar splits long names; GNU's magic ("ustar  ") uses that field for something else.
  if (std::memcmp(b + 257, "ustar\0", 6) == 0)
    if (std::string prefix = field_text(b + 345, 155); !prefix.empty())
      h.name = fmt::format("{}/{}", prefix, h.name);
  return h;
}

std::string TarReader::text(int64_t at, int64_t size, const char* what) {
  if (size > kLargestExtension)
    fail(at, fmt::format("a {} of {} bytes; at most {} are read", what, size, kLargestExtension));
  if (at + padded(size) > file_.size())
    fail(at, fmt::format("the file of {} bytes ends inside a {}", file_.size(), what));
  std::string out(size_t(size), '\0');
  file_.read(at, out.data(), out.size());
  return out;
}

// Parses records "LENGTH KEY=VALUE\n", where LENGTH counts the whole record.
void TarReader::read_pax(int64_t at, int64_t size, std::string& name, int64_t& file_size,
                         bool& has_size) {
  std::string all = text(at, size, "pax header");
  std::string_view rest = all;
  while (!rest.empty() && rest[0] != '\0') {
    size_t length = 0;
    auto [stop, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    size_t digits = size_t(stop - rest.data());
    if (problem != std::errc() || length > rest.size() || length < digits + 3 || *stop != ' ' ||
        rest[length - 1] != '\n')
      fail(at, "broken pax header");
    std::string_view record = rest.substr(digits + 1, length - digits - 2);
    size_t equal = record.find('=');
    if (equal == record.npos) fail(at, "broken pax header");
    std::string_view key = record.substr(0, equal), value = record.substr(equal + 1);
    if (key == "path") name = value;
    if (key == "size") {
      auto [end, bad] = std::from_chars(value.data(), value.data() + value.size(), file_size);
      if (bad != std::errc() || end != value.data() + value.size() || file_size < 0)
        fail(at, "broken size in a pax header");
      has_size = true;
    }
    if (key.starts_with("GNU.sparse")) fail(at, "a sparse member: pack it again without --sparse");
    rest.remove_prefix(length);
  }
}

// More members follow the end mark if tars were joined with `cat`. Silently losing them would be
// worse than an error.
void TarReader::check_end(int64_t at) {
  if (file_.size() - at > kTail)
    fail(at, fmt::format("{} bytes follow the tar end mark; at most {} are checked: pack the shard "
                         "again, or cut the file after the mark",
                         file_.size() - at, kTail));
  std::vector<char> tail(size_t(file_.size() - at));
  file_.read(at, tail.data(), tail.size());
  if (!all_zero(tail.data(), int64_t(tail.size())))
    fail(at,
         "more data follows the tar end mark: pack joined tars again, or join them with `tar "
         "--concatenate`");
}

bool TarReader::next(TarMember& member) {
  std::string long_name;
  int64_t pax_size = 0, first_header = at_;
  bool has_size = false, extended = false;
  while (true) {
    Header h = parse(at_);
    if (h.end) {
      if (extended) fail(at_, "the archive ends after an extended header");
      if (!parse(at_ + kBlock).end) fail(at_, "a single zero block inside the archive");
      check_end(at_ + 2 * kBlock);
      return false;
    }
    int64_t body = at_ + kBlock;
    switch (h.type) {
      case 'L':
        long_name = text(body, h.size, "long name");
        long_name.resize(strnlen(long_name.data(), long_name.size()));
        break;
      case 'x':
        read_pax(body, h.size, long_name, pax_size, has_size);
        break;
      case 'K':
      case 'g':
        text(body, h.size, "extended header");
        break;
      default: {
        std::string name = long_name.empty() ? h.name : long_name;
        int64_t size = has_size ? pax_size : h.size;
        const bool no_content = is_no_content(h.type, name);
        const bool regular = !no_content && (h.type == '0' || h.type == '\0' || h.type == '7');
        const bool skipped = no_content || (!regular && h.type != 'S' && is_hidden_member(name) &&
                                            unsafe_name(name).empty());
        if (!skipped && !regular) fail(at_, refusal(h.type, name));
        if (skipped && h.type != 'D') size = 0;
        if (size > file_.size() - body || padded(size) > file_.size() - body)
          fail(first_header, fmt::format("member '{}' has {} bytes from byte {} on, but the file "
                                         "has only {} bytes: it was cut",
                                         name, size, body, file_.size()));
        last_ = name;
        at_ = body + padded(size);
        if (skipped) {
          first_header = at_;
          long_name.clear();
          has_size = extended = false;
          continue;
        }
        member = {std::move(name), first_header, body, size};
        return true;
      }
    }
    if (h.type != 'g') extended = true;
    at_ = body + padded(h.size);
  }
}

}  // namespace data
