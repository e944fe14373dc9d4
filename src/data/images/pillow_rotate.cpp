// SPDX-License-Identifier: Apache-2.0
// Pillow's rotation about the middle: quarter turns move pixels, and all others take the nearest
// pixel at positions in fixed point. Results equal Pillow's byte for byte.
#include <cmath>
#include <cstring>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "data/images/pillow.hpp"

namespace data::pillow {
namespace {

constexpr int kFractionBits = 16;

int64_t to_fixed(double v) { return int64_t(std::floor(v * (1 << kFractionBits) + 0.5)); }

// Rounds to 15 decimals, as Pillow does.
double to_15_decimals(double v) {
  return double(std::nearbyint(static_cast<long double>(v) * 1e15L)) / 1e15;
}

// Copies pixel (y, x) of `to` from place(y, x) of `from`.
template <class Place>
void move_pixels(const Image& from, const Image& to, const Place& place) {
  for (int64_t y = 0; y < to.height; ++y)
    for (int64_t x = 0; x < to.width; ++x) {
      const auto [row, column] = place(y, x);
      std::memcpy(to.data + (y * to.width + x) * 3, from.data + (row * from.width + column) * 3, 3);
    }
}

// Takes the nearest pixels of `from`. Places outside `from` become black.
void take_nearest(const Image& from, double degrees, const Image& to) {
  const double turn = -degrees * (M_PI / 180), c = to_15_decimals(base::math::cos(turn)),
               s = to_15_decimals(base::math::sin(turn)), middle_x = double(from.width) / 2,
               middle_y = double(from.height) / 2;
  const double first_x = base::fused(c, -middle_x, s * -middle_y) + middle_x,
               first_y = base::fused(-s, -middle_x, c * -middle_y) + middle_y;
  int64_t row_x = to_fixed(first_x + c * 0.5 + s * 0.5),
          row_y = to_fixed(first_y - s * 0.5 + c * 0.5);
  std::memset(to.data, 0, size_t(to.bytes()));
  for (int64_t y = 0; y < to.height; ++y, row_x += to_fixed(s), row_y += to_fixed(c)) {
    int64_t at_x = row_x, at_y = row_y;
    for (int64_t x = 0; x < to.width; ++x, at_x += to_fixed(c), at_y += to_fixed(-s)) {
      const int64_t column = at_x >> kFractionBits, row = at_y >> kFractionBits;
      if (column < 0 || column >= from.width || row < 0 || row >= from.height) continue;
      std::memcpy(to.data + (y * to.width + x) * 3, from.data + (row * from.width + column) * 3, 3);
    }
  }
}

}  // namespace

void rotate(const Image& from, double degrees, const Image& to) {
  const int64_t last_row = from.height - 1, last_column = from.width - 1;
  const bool square = from.height == from.width;
  using Place = std::pair<int64_t, int64_t>;
  if (degrees == 0)
    std::memcpy(to.data, from.data, size_t(from.bytes()));
  else if (degrees == 180)
    move_pixels(from, to,
                [=](int64_t y, int64_t x) { return Place(last_row - y, last_column - x); });
  else if (degrees == 90 && square)
    move_pixels(from, to, [=](int64_t y, int64_t x) { return Place(x, last_column - y); });
  else if (degrees == 270 && square)
    move_pixels(from, to, [=](int64_t y, int64_t x) { return Place(last_row - x, y); });
  else
    take_nearest(from, degrees, to);
}

}  // namespace data::pillow
