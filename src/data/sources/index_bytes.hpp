// SPDX-License-Identifier: Apache-2.0
// Numbers and texts in the bytes of an index file. Readers never pass the end.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace data {

class IndexWriter {
 public:
  void number(int64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }
  // A number that is mostly small takes one byte for each seven bits.
  void small(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out += char(0x80 | (value & 0x7f));
    out += char(value);
  }
  void text(std::string_view s) {
    small(s.size());
    out += s;
  }
  std::string out;
};

// After a failure all values are zero or empty, and good() is false.
class IndexReader {
 public:
  explicit IndexReader(std::string_view bytes) : rest_(bytes) {}
  int64_t number() {
    int64_t value = 0;
    if (std::string_view raw = take(sizeof value); !raw.empty())
      std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  uint64_t small() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = uint8_t(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail();
    return 0;
  }
  std::string_view text() { return take(small()); }
  // Reads a count of elements that need at least `least` bytes each.
  size_t count(size_t least) {
    const uint64_t n = small();
    if (n <= rest_.size() / least) return size_t(n);
    fail();
    return 0;
  }
  std::string_view rest() const { return rest_; }
  bool done() const { return good_ && rest_.empty(); }
  bool good() const { return good_; }

 private:
  void fail() {
    good_ = false;
    rest_ = {};
  }
  std::string_view take(uint64_t n) {
    if (n > rest_.size()) {
      fail();
      return {};
    }
    std::string_view out = rest_.substr(0, size_t(n));
    rest_.remove_prefix(size_t(n));
    return out;
  }
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace data
