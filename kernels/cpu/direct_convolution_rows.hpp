// SPDX-License-Identifier: Apache-2.0
// Arguments of the vector loop of direct convolutions.
#pragma once

#include <cstdint>

namespace kernels {

constexpr int64_t kTileOutputs = 16;   // output channels of a tile
constexpr int64_t kTilePositions = 6;  // positions of a tile

// y = the sum over the pixels of the window (taps), and their channels, of x times weight.
struct DirectTile {
  float* y;               // [positions, kTileOutputs], rows are `stride` elements apart
  const float* const* x;  // [taps, kTilePositions]: channels of the pixel below each tap
  const float* weight;    // [taps, in, kTileOutputs]
  int64_t stride, positions, taps, in;
};

}  // namespace kernels
