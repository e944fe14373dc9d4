// SPDX-License-Identifier: Apache-2.0
#include "data/images/jpeg_plain.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace data {
namespace {

// The markers of the format that this file looks at.
enum Marker : uint8_t {
  kBaseline = 0xc0,
  kExtended = 0xc1,
  kProgressive = 0xc2,
  kArithmetic = 0xc9,
  kEnd = 0xd9,
  kScan = 0xda,
  kJfif = 0xe0,
  kAdobe = 0xee,
};
bool is_restart(uint8_t marker) { return marker >= 0xd0 && marker <= 0xd7; }
bool has_no_content(uint8_t marker) { return marker == 0x01 || (marker >= 0xd0 && marker <= kEnd); }

class Mender {
 public:
  explicit Mender(const Bytes& file) : p_(file.data()), size_(file.size()) {}

  PlainJpeg mended(size_t extra) {
    out_.assign(p_, p_ + std::min<size_t>(size_, 2));
    at_ = out_.size();
    PlainJpeg plain;
    while (next_segment())
      if (out_[begin_ + 1] == kScan && !copy_scan(plain, extra)) break;
    if (transform_ && out_[transform_] > 2) out_[transform_] = components_ == 4 ? 2 : 1;
    if (!plain.one_scan) out_.insert(out_.end(), p_ + std::min(at_, size_), p_ + size_);
    plain.bytes.reset(out_.size());
    std::memcpy(plain.bytes.data(), out_.data(), out_.size());
    return plain;
  }

 private:
  // Copies the next segment to begin_. Returns false before an unknown one.
  bool next_segment() {
    while (at_ + 4 <= size_ && (p_[at_] != 0xff || p_[at_ + 1] == 0xff || p_[at_ + 1] == 0)) ++at_;
    if (at_ + 4 > size_) return false;
    const uint8_t marker = p_[at_ + 1];
    const size_t length = 2 + (size_t(p_[at_ + 2]) << 8 | p_[at_ + 3]);
    if (has_no_content(marker) || length > size_ - at_) return false;
    begin_ = out_.size();
    out_.insert(out_.end(), p_ + at_, p_ + at_ + length);
    at_ += length;
    uint8_t* s = &out_[begin_];
    if (marker == kJfif && length >= 16 && std::memcmp(s + 4, "JFIF", 5) == 0) s[9] = 1;
    if (marker == kAdobe && length >= 16 && std::memcmp(s + 4, "Adobe", 5) == 0)
      transform_ = begin_ + 15;
    if ((marker >= kBaseline && marker <= kProgressive) || marker == kArithmetic) {
      sequential_ = marker != kProgressive;
      if (length >= 10) components_ = s[9];
    }
    if (marker == kScan && sequential_ && length >= 8 && length == 8u + 2u * s[4]) {
      const uint8_t whole[] = {0, 63, 0};  // first and last coefficient, bits
      std::memcpy(s + length - sizeof whole, whole, sizeof whole);
    }
    return true;
  }

  // Copies the data of the scan whose header is at begin_. Returns false if nothing more is to be
  // mended.
  bool copy_scan(PlainJpeg& plain, size_t extra) {
    if (!sequential_ || out_.size() < begin_ + 8) return false;
    plain.one_scan = components_ > 0 && out_[begin_ + 4] == components_;
    const size_t end = end_of_data();
    const size_t kept = plain.one_scan ? end - std::min(extra, end - at_) : end;
    out_.insert(out_.end(), p_ + at_, p_ + kept);
    if (!plain.one_scan) {
      at_ = end;
      return true;
    }
    constexpr size_t kZeros = 16;
    const uint8_t* marker = std::find_if(p_ + end, p_ + size_, [](uint8_t b) { return b != 0xff; });
    const bool has_end = marker != p_ + size_ && *marker == kEnd;
    plain.zeros = !has_end && kept - at_ >= kZeros &&
                  std::all_of(out_.end() - kZeros, out_.end(), [](uint8_t b) { return b == 0; });
    out_.insert(out_.end(), {0xff, kEnd});
    return false;
  }

  // Returns the place of the first marker after the scan's data, or the end of the file. Restart
  // markers, and bytes 0xff that belong to the data, do not count.
  size_t end_of_data() const {
    for (size_t at = at_; at < size_; ++at) {
      if (p_[at] != 0xff) continue;
      size_t next = at + 1;
      while (next < size_ && p_[next] == 0xff) ++next;  // fill bytes
      if (next == size_ || (p_[next] != 0 && !is_restart(p_[next]))) return at;
      at = next;
    }
    return size_;
  }

  const uint8_t* p_;
  size_t size_, at_ = 0;
  std::vector<uint8_t> out_;
  size_t begin_ = 0;      // offset of the last segment in out_
  size_t transform_ = 0;  // offset of Adobe's transform in out_
  size_t components_ = 0;
  bool sequential_ = false;
};

}  // namespace

PlainJpeg plain_jpeg(const Bytes& file, size_t extra) { return Mender(file).mended(extra); }

}  // namespace data
