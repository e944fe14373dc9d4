// SPDX-License-Identifier: Apache-2.0
// Gaussian blur and sharpness, as Pillow does them (ssl.md 6.2, 6.3).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/images/pillow.hpp"

// The radius of the box and the blend repeat the float operations of the library, and fuse none.

namespace data::pillow {
namespace {

// Applies the box to `count` bytes. Neighbours are `unit` bytes apart; those beyond both ends are
// read, too.
template <int kReach>
void apply_box(const uint8_t* in, int64_t count, int64_t unit, const BoxFilter& box, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t sum = 0;
    for (int64_t k = -kReach; k <= kReach; ++k) sum += in[i + k * unit];
    const uint32_t ends = uint32_t(in[i - (kReach + 1) * unit]) + in[i + (kReach + 1) * unit];
    out[i] = uint8_t((box.whole * sum + box.part * ends + (1u << 23)) >> 24);
  }
}

void apply_wide_box(const uint8_t* in, int64_t count, int64_t unit, const BoxFilter& box,
                    uint8_t* out) {
  constexpr int64_t kPiece = 512;
  uint32_t sums[kPiece];
  const int64_t end = (box.reach + 1) * unit;
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t n = std::min(kPiece, count - first);
    const uint8_t* from = in + first;
    std::fill(sums, sums + n, 0u);
    for (int64_t k = -box.reach; k <= box.reach; ++k)
      for (int64_t i = 0; i < n; ++i) sums[i] += from[i + k * unit];
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t ends = uint32_t(from[i - end]) + from[i + end];
      out[first + i] = uint8_t((box.whole * sums[i] + box.part * ends + (1u << 23)) >> 24);
    }
  }
}

// Filters a line three times: a row of pixels, or an image as a line of rows. Each pixel or row has
// `unit` bytes. The first and the last one are repeated beyond the line.
class BoxLine {
 public:
  BoxLine(int64_t bytes, int64_t unit, const BoxFilter& box)
      : bytes_(bytes),
        unit_(unit),
        margin_((box.reach + 1) * unit),
        box_(box),
        line_{Bytes(size_t(bytes + 2 * margin_)), Bytes(size_t(bytes + 2 * margin_))} {}

  void blur(uint8_t* data) {
    uint8_t *from = line_[0].data() + margin_, *to = line_[1].data() + margin_;
    std::memcpy(from, data, size_t(bytes_));
    pass(from, to);
    pass(to, from);
    pass(from, data);
  }

 private:
  void pass(uint8_t* in, uint8_t* out) const {
    for (int64_t k = 1; k <= box_.reach + 1; ++k) {
      std::memcpy(in - k * unit_, in, size_t(unit_));
      std::memcpy(in + bytes_ + (k - 1) * unit_, in + bytes_ - unit_, size_t(unit_));
    }
    if (box_.reach == 0)
      apply_box<0>(in, bytes_, unit_, box_, out);
    else if (box_.reach == 1)
      apply_box<1>(in, bytes_, unit_, box_, out);
    else
      apply_wide_box(in, bytes_, unit_, box_, out);
  }

  int64_t bytes_, unit_, margin_;
  BoxFilter box_;
  Bytes line_[2];
};

}  // namespace

BoxFilter box_filter(float radius) {
  constexpr float kPasses = 3;
  const float variance = radius * radius / kPasses;
  const float length = float(std::sqrt(12.0 * double(variance) + 1.0));
  const float half = float(std::floor((double(length) - 1.0) / 2.0));
  float rest = (2 * half + 1) * (half * (half + 1) - 3 * variance);
  rest = rest / (6 * (variance - (half + 1) * (half + 1)));
  const float reach = half + rest;
  BoxFilter box{int64_t(reach), 0, 0};
  box.whole = uint32_t(float(1 << 24) / (reach * 2 + 1));
  box.part = ((1u << 24) - uint32_t(2 * box.reach + 1) * box.whole) / 2;
  return box;
}

void gaussian_blur(const Image& image, float radius) {
  const BoxFilter box = box_filter(radius);
  const int64_t row = image.width * 3;
  BoxLine along(row, 3, box), down(image.bytes(), row, box);
  for (int64_t y = 0; y < image.height; ++y) along.blur(image.data + y * row);
  down.blur(image.data);
}

void sharpness(const Image& image, float factor) {
  const int64_t row = image.width * 3;
  Bytes copy(size_t(image.bytes()));
  std::memcpy(copy.data(), image.data, size_t(image.bytes()));
  // The library adds floats. Its sum is never near the middle between two bytes, so whole numbers
  // give the same bytes. Pixels at the border are not smoothed, so blending keeps them.
  for (int64_t y = 1; y + 1 < image.height; ++y) {
    const uint8_t *middle = copy.data() + y * row, *above = middle - row, *below = middle + row;
    uint8_t* out = image.data + y * row;
    for (int64_t i = 3; i < row - 3; ++i) {
      const int around = above[i - 3] + above[i] + above[i + 3] + middle[i - 3] + middle[i + 3] +
                         below[i - 3] + below[i] + below[i + 3];
      const int smooth = (2 * (around + 5 * middle[i]) + 13) / 26;
      const float value = float(smooth) + factor * float(int(middle[i]) - smooth);
      out[i] = uint8_t(int32_t(std::min(std::max(value, 0.0f), 255.0f)));
    }
  }
}

}  // namespace data::pillow
