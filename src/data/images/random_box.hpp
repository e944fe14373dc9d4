// SPDX-License-Identifier: Apache-2.0
// The sampler of torchvision's RandomResizedCrop (ssl.md 6.1).
#pragma once

#include <cmath>

#include "base/elementary.hpp"
#include "data/images/pillow.hpp"

namespace data::pillow {

// Limits of a random crop: its part of the area, and its width / height.
struct CropLimits {
  double smallest = 0.08, largest = 1;
  double narrowest = 3.0 / 4, widest = 4.0 / 3;
};

// Draws a crop of an image. draw.uniform(low, high) returns a float; draw.below(n) returns a whole
// number in [0, n). After ten crops that do not fit it returns the largest one in the middle whose
// ratio is allowed.
template <class Draw>
Box random_box(int64_t height, int64_t width, const CropLimits& limits, Draw&& draw) {
  constexpr int kTries = 10;
  const float narrow = base::math::log(float(limits.narrowest)),
              wide = base::math::log(float(limits.widest));
  const auto rounded = [](double x) { return int64_t(std::nearbyint(x)); };  // half to even
  for (int i = 0; i < kTries; ++i) {
    const double area =
        double(height * width) * double(draw.uniform(limits.smallest, limits.largest));
    const double ratio = double(base::math::exp(float(draw.uniform(double(narrow), double(wide)))));
    const int64_t w = rounded(std::sqrt(area * ratio)), h = rounded(std::sqrt(area / ratio));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    const int64_t y = draw.below(height - h + 1);
    return {y, draw.below(width - w + 1), h, w};
  }
  Box box{0, 0, height, width};
  const double ratio = double(width) / double(height);
  if (ratio < limits.narrowest) box.height = rounded(double(width) / limits.narrowest);
  if (ratio > limits.widest) box.width = rounded(double(height) * limits.widest);
  box.y = (height - box.height) / 2;
  box.x = (width - box.width) / 2;
  return box;
}

}  // namespace data::pillow
