// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/resample.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/fused.hpp"

namespace checkpoint {

int64_t grid_side(int64_t rows) {
  int64_t side = std::llround(std::sqrt(double(rows)));
  return rows > 0 && side * side == rows ? side : -1;
}

std::vector<float> resample_grid(const std::vector<float>& table, int64_t from, int64_t to,
                                 int64_t width) {
  CHECK(int64_t(table.size()) == from * from * width && from > 0 && to > 0,
        "a table of {} for {} x {} x {}", table.size(), from, from, width);
  struct Tap {
    int64_t low, high;
    double share;  // weight of `high`; `low` gets the rest
  };
  std::vector<Tap> taps;
  for (int64_t i = 0; i < to; ++i) {
    double at = to > 1 ? double(i) * double(from - 1) / double(to - 1) : 0;
    int64_t low = std::min(int64_t(at), from - 1);
    taps.push_back({low, std::min(low + 1, from - 1), at - double(low)});
  }
  std::vector<float> out(size_t(to * to * width));
  float* o = out.data();
  for (const Tap& y : taps)
    for (const Tap& x : taps) {
      const float* corner[4] = {&table[size_t((y.low * from + x.low) * width)],
                                &table[size_t((y.low * from + x.high) * width)],
                                &table[size_t((y.high * from + x.low) * width)],
                                &table[size_t((y.high * from + x.high) * width)]};
      double share[4] = {(1 - y.share) * (1 - x.share), (1 - y.share) * x.share,
                         y.share * (1 - x.share), y.share * x.share};
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (int k = 0; k < 4; ++k) sum = base::fused(share[k], double(corner[k][c]), sum);
        *o++ = float(sum);
      }
    }
  return out;
}

}  // namespace checkpoint
