// SPDX-License-Identifier: Apache-2.0
// How bytes become the values of pixels.
#pragma once

namespace kernels {

// A byte becomes to_low + (byte - low) / width * to_width = v, and then (v - mean) / deviation of
// its channel: red, green or blue. Each operation is rounded, as in the preprocessing ops
// value_range and normalize.
struct PixelRange {
  float low = 0, width = 255, to_low = -1, to_width = 2;
  float mean[3] = {0, 0, 0}, deviation[3] = {1, 1, 1};

  // Returns false if it divides by 0.
  bool valid() const { return width != 0 && deviation[0] * deviation[1] * deviation[2] != 0; }
};

}  // namespace kernels
