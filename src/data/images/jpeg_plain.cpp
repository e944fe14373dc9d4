// SPDX-License-Identifier: Apache-2.0
#include "data/images/jpeg_plain.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

namespace data {
namespace {

// The markers of the format that this file looks at.
enum Marker : uint8_t {
  kBaseline = 0xc0,
  kExtended = 0xc1,
  kProgressive = 0xc2,
  kArithmetic = 0xc9,
  kArithmeticProgressive = 0xca,
  kEnd = 0xd9,
  kScan = 0xda,
  kJfif = 0xe0,
  kAdobe = 0xee,
};
bool is_restart(uint8_t marker) { return marker >= 0xd0 && marker <= 0xd7; }
bool has_no_content(uint8_t marker) { return marker == 0x01 || (marker >= 0xd0 && marker <= kEnd); }

constexpr uint8_t kLastPlace = 63;  // number of a block's last coefficient
constexpr uint8_t kUnseen = 255;
// The decoder of arithmetic coding reads zeros behind the end without a warning.
constexpr const char* kCutAnywhere =
    "it ends without an end marker, so its arithmetic coding may be cut anywhere";

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
    if (!plain.one_scan) {
      out_.insert(out_.end(), p_ + std::min(at_, size_), p_ + size_);
      if (at_ >= size_) end_scans(plain);
    }
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
    if ((marker >= kBaseline && marker <= kProgressive) || marker == kArithmetic ||
        marker == kArithmeticProgressive) {
      sequential_ = marker != kProgressive && marker != kArithmeticProgressive;
      arithmetic_ = marker == kArithmetic || marker == kArithmeticProgressive;
      known_ = true;
      if (length >= 10) components_ = s[9];
    }
    if (marker == kScan && sequential_ && length >= 8 && length == 8u + 2u * s[4]) {
      const uint8_t whole[] = {0, 63, 0};  // first and last coefficient, bits
      std::memcpy(s + length - sizeof whole, whole, sizeof whole);
    }
    if (marker == kScan) note_scan(s, length);
    return true;
  }

  // Notes how many low bits of each coefficient in a scan are still missing after it.
  void note_scan(const uint8_t* s, size_t length) {
    const size_t count = length > 4 ? s[4] : 0;
    if (length != 8 + 2 * count) return;
    const uint8_t first = s[length - 3], last = std::min<uint8_t>(s[length - 2], kLastPlace);
    for (size_t c = 0; c < count; ++c) {
      auto [component, fresh] = missing_bits_.try_emplace(s[5 + 2 * c]);
      if (fresh) component->second.fill(kUnseen);
      for (size_t place = first; place <= last; ++place)
        component->second[place] = s[length - 1] & 15;
    }
  }

  // Adds the end marker that a file of several scans lacks, if the scans are complete.
  void end_scans(PlainJpeg& plain) {
    if (!known_ || missing_bits_.empty()) return;
    int64_t places = 0;
    for (const auto& [component, bits] : missing_bits_)
      places += std::ranges::count(bits, uint8_t{0});
    if (places < int64_t(components_) * (kLastPlace + 1))
      plain.lacks = "it ends without an end marker, and scans with finer detail are missing";
    else if (arithmetic_)
      plain.lacks = kCutAnywhere;
    else
      plain.zeros = ends_with_zeros(at_);
    if (plain.lacks.empty()) out_.insert(out_.end(), {0xff, kEnd});
    plain.ended = plain.lacks.empty();
  }

  // True if the copied data ends with many zeros, all within its last `bytes` bytes.
  bool ends_with_zeros(size_t bytes) const {
    constexpr size_t kZeros = 16;
    return std::min(bytes, out_.size()) >= kZeros &&
           std::all_of(out_.end() - kZeros, out_.end(), [](uint8_t b) { return b == 0; });
  }

  // Copies the data of the scan whose header is at begin_. Returns false if there is nothing more
  // to repair.
  bool copy_scan(PlainJpeg& plain, size_t extra) {
    if (!known_ || out_.size() < begin_ + 8) return false;
    plain.one_scan = sequential_ && components_ > 0 && out_[begin_ + 4] == components_;
    const size_t end = end_of_data();
    const size_t kept = plain.one_scan ? end - std::min(extra, end - at_) : end;
    out_.insert(out_.end(), p_ + at_, p_ + kept);
    if (!plain.one_scan) {
      at_ = end;
      return true;
    }
    const uint8_t* marker = std::find_if(p_ + end, p_ + size_, [](uint8_t b) { return b != 0xff; });
    const bool has_end = marker != p_ + size_ && *marker == kEnd;
    plain.zeros = !has_end && ends_with_zeros(kept - at_);
    if (!has_end && arithmetic_) plain.lacks = kCutAnywhere;
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
  bool known_ = false, sequential_ = false, arithmetic_ = false;
  // By component: the number of low bits of each coefficient that no scan has held yet; kUnseen:
  // all bits.
  std::map<uint8_t, std::array<uint8_t, kLastPlace + 1>> missing_bits_;
};

}  // namespace

PlainJpeg plain_jpeg(const Bytes& file, size_t extra) { return Mender(file).mended(extra); }

}  // namespace data
