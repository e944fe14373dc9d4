// SPDX-License-Identifier: Apache-2.0
// Loop of direct convolutions. vector_math.hpp explains how this file is compiled. With AVX-512
// oneDNN is faster, so there is no loop. The wide tables have none, because AVX-512 has none.
#pragma once

#include "kernels/cpu/direct_convolution_rows.hpp"
#include "kernels/cpu/vector_math.hpp"

namespace kernels {
namespace {

#if !defined(KERNELS_AVX512) && !defined(KERNELS_WIDE)

// Sums of 6 positions by 16 channels fill 12 of 16 registers. All positions are computed, but
// only those of the tile are stored.
KERNELS_INLINE void convolve_positions(const DirectTile& t) {
  constexpr int kVectors = kTileOutputs / kLanes;
  V sum[kTilePositions][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTilePositions; ++r)
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sum[r][j] = zero();
  const float* weight = t.weight;
  for (int64_t tap = 0; tap < t.taps; ++tap) {
    const float* const* const x = t.x + tap * kTilePositions;
    const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *x4 = x[4], *x5 = x[5];
    for (int64_t i = 0; i < t.in; ++i, weight += kTileOutputs) {
      V w[kVectors];
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) w[j] = load(weight + j * kLanes);
      const float* const rows[kTilePositions] = {x0, x1, x2, x3, x4, x5};
#pragma GCC unroll 8
      for (int r = 0; r < kTilePositions; ++r) {
        const V pixel = broadcast(rows[r][i]);
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) sum[r][j] = add_product(sum[r][j], pixel, w[j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTilePositions; ++r) {
    if (r >= t.positions) return;
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) store(t.y + r * t.stride + j * kLanes, sum[r][j]);
  }
}
constexpr void (*kConvolveTile)(const DirectTile&) = convolve_positions;

#else
constexpr void (*kConvolveTile)(const DirectTile&) = nullptr;
#endif

}  // namespace
}  // namespace kernels
