// SPDX-License-Identifier: Apache-2.0
// The change of hue, as Pillow does it: to hue, saturation and value in bytes, and back (ssl.md
// 6.2).
#include <algorithm>
#include <array>
#include <cmath>

#include "data/images/pillow.hpp"

// Each operation is rounded to the type that the library uses. None is fused.

namespace data::pillow {
namespace {

// Number of pixels that each loop handles before the next one. Loops over one type become vector
// loops.
constexpr int64_t kHueBlock = Planes::kUnit;

// For each hue, its sixth of the colour circle, and its place within that sixth. Hue 255 is a whole
// turn.
struct HueSectors {
  std::array<int32_t, 256> sector;
  std::array<float, 256> part;
  HueSectors() {
    for (int h = 0; h < 256; ++h) {
      const double sixths = double(h) * 6.0 / 255.0;
      const int whole = int(std::floor(sixths));
      part[size_t(h)] = float(sixths - double(whole));
      sector[size_t(h)] = whole % 6;
    }
  }
};
const HueSectors& hue_sectors() {
  static const HueSectors all;
  return all;
}

void block_to_hsv(uint8_t* first, uint8_t* second, uint8_t* third) {
  int32_t most[kHueBlock], range[kHueBlock], to_r[kHueBlock], to_g[kHueBlock], to_b[kHueBlock];
  float angle[kHueBlock], saturation[kHueBlock];
  for (int64_t i = 0; i < kHueBlock; ++i) {
    const int32_t r = first[i], g = second[i], b = third[i];
    most[i] = std::max(r, std::max(g, b));
    range[i] = most[i] - std::min(r, std::min(g, b));
    to_r[i] = most[i] - r;
    to_g[i] = most[i] - g;
    to_b[i] = most[i] - b;
  }
  for (int64_t i = 0; i < kHueBlock; ++i) {
    const float whole = float(std::max(range[i], 1));
    const float from_r = float(to_r[i]) / whole, from_g = float(to_g[i]) / whole,
                from_b = float(to_b[i]) / whole;
    // The library adds doubles: 0, 2 or 4, plus one part, minus another. One of the parts is 1, so
    // a sum of floats, rounded once, has the same bits.
    const bool red = to_r[i] == 0, green = to_g[i] == 0;
    const float start = red ? 0.0f : green ? 2.0f : 4.0f;
    const float plus = red     ? from_b
                       : green ? from_r
                               : from_g,
                minus = red     ? from_g
                        : green ? from_b
                                : from_r;
    const float rise = plus == 1.0f ? (start + 1.0f) - minus : (start - 1.0f) + plus;
    angle[i] = range[i] == 0 ? 0.0f : rise;
    saturation[i] = float(range[i]) / float(std::max(most[i], 1));
  }
  int32_t hue[kHueBlock], level[kHueBlock];
  for (int64_t i = 0; i < kHueBlock; ++i) {
    const double turns = double(angle[i]) / 6.0 + 1.0;
    const float part = float(turns >= 1.0 ? turns - 1.0 : turns);
    hue[i] = int32_t(double(part) * 255.0);
  }
  for (int64_t i = 0; i < kHueBlock; ++i) level[i] = int32_t(double(saturation[i]) * 255.0);
  for (int64_t i = 0; i < kHueBlock; ++i) {
    first[i] = uint8_t(hue[i]);
    second[i] = uint8_t(level[i]);
    third[i] = uint8_t(most[i]);
  }
}

void block_from_hsv(uint8_t* first, uint8_t* second, uint8_t* third) {
  const HueSectors& sectors = hue_sectors();
  int32_t sector[kHueBlock], low[kHueBlock], falling[kHueBlock], rising[kHueBlock];
  float part[kHueBlock], saturation[kHueBlock], value[kHueBlock];
  for (int64_t i = 0; i < kHueBlock; ++i) {
    sector[i] = sectors.sector[first[i]];
    part[i] = sectors.part[first[i]];
  }
  for (int64_t i = 0; i < kHueBlock; ++i) {
    saturation[i] = float(double(second[i]) / 255.0);
    value[i] = float(third[i]);
  }
  for (int64_t i = 0; i < kHueBlock; ++i)
    low[i] = int32_t(double(value[i]) * (1.0 - double(saturation[i])) + 0.5);
  for (int64_t i = 0; i < kHueBlock; ++i)
    falling[i] = int32_t(double(value[i]) * (1.0 - double(saturation[i] * part[i])) + 0.5);
  for (int64_t i = 0; i < kHueBlock; ++i)
    rising[i] =
        int32_t(double(value[i]) * (1.0 - double(saturation[i]) * (1.0 - double(part[i]))) + 0.5);
  for (int64_t i = 0; i < kHueBlock; ++i) {
    const int32_t s = sector[i], v = third[i], p = low[i], q = falling[i], t = rising[i];
    first[i] = uint8_t(s == 0 || s == 5 ? v : s == 1 ? q : s == 4 ? t : p);
    second[i] = uint8_t(s == 1 || s == 2 ? v : s == 0 ? t : s == 3 ? q : p);
    third[i] = uint8_t(s == 3 || s == 4 ? v : s == 2 ? t : s == 5 ? q : p);
  }
}

template <class Block>
void for_each_block(Planes& image, const Block& block) {
  for (int64_t i = 0; i < image.pixels(); i += kHueBlock)  // channels are padded to whole blocks
    block(image.channel(0) + i, image.channel(1) + i, image.channel(2) + i);
}

}  // namespace

void to_hsv(Planes& image) { for_each_block(image, block_to_hsv); }
void from_hsv(Planes& image) { for_each_block(image, block_from_hsv); }

void hue(Planes& image, double turn) {
  to_hsv(image);
  const uint8_t shift = uint8_t(int32_t(turn * 255.0));  // beyond 255 it begins again at 0
  uint8_t* hues = image.channel(0);
  for (int64_t i = 0; i < image.pixels(); ++i) hues[i] = uint8_t(hues[i] + shift);
  from_hsv(image);
}

}  // namespace data::pillow
