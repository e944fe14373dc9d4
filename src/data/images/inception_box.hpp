// SPDX-License-Identifier: Apache-2.0
// The sampler of random crops of the published pipeline: TensorFlow's
// sample_distorted_bounding_box.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "data/images/pillow.hpp"

// It repeats the float operations of the published sampler, and fuses none.

namespace data {

// One try of the sampler. The height is uniform between the heights of the smallest and the largest
// area at this aspect ratio; the place is uniform. Like the original, it never draws the last row
// or column of places.
template <class Draw>
std::optional<pillow::Box> try_inception_box(int64_t in_height, int64_t in_width, float smallest,
                                             float largest, float ratio, Draw& draw) {
  float min_area = smallest * float(in_width) * float(in_height),
        max_area = largest * float(in_width) * float(in_height);
  auto width_of = [&](int64_t h) { return int64_t(std::lrint(float(h) * ratio)); };
  int64_t height = std::lrint(std::sqrt(min_area / ratio)),
          tallest = std::lrint(std::sqrt(max_area / ratio));
  if (width_of(tallest) > in_width) {
    tallest = int64_t((double(in_width) + 0.5 - double(0.0000001f)) / double(ratio));
    if (width_of(tallest) > in_width) --tallest;
  }
  tallest = std::min(tallest, in_height);
  height = std::min(height, tallest);
  if (height < tallest) height += draw.below(tallest - height + 1);
  // Rounding may have moved the area over a limit; one row more or less corrects that.
  if (float(width_of(height) * height) < min_area) ++height;
  if (float(width_of(height) * height) > max_area) --height;
  int64_t width = width_of(height);
  float area = float(width * height);
  if (area < min_area || area > max_area || width > in_width || height > in_height || width < 1 ||
      height < 1)
    return std::nullopt;
  pillow::Box box{0, 0, height, width};
  if (height < in_height) box.y = draw.below(in_height - height);
  if (width < in_width) box.x = draw.below(in_width - width);
  return box;
}

// Draws a crop of `smallest` to `largest` of the area of an image. draw.uniform() returns a float
// in [0, 1); draw.below(n) returns a whole number in [0, n). Returns the whole image if no try
// fits.
template <class Draw>
pillow::Box inception_box(int64_t in_height, int64_t in_width, float smallest, float largest,
                          Draw& draw) {
  constexpr int kTries = 100;
  constexpr float kNarrowest = 0.75f, kWidest = 1.33f;  // width / height
  for (int i = 0; i < kTries; ++i) {
    const float ratio = draw.uniform() * (kWidest - kNarrowest) + kNarrowest;
    if (auto box = try_inception_box(in_height, in_width, smallest, largest, ratio, draw))
      return *box;
  }
  return {0, 0, in_height, in_width};
}

}  // namespace data
