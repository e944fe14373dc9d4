// SPDX-License-Identifier: Apache-2.0
// Rows that one warp reads. Lane l has the packs l, l + 32, ... of four columns. Only layer_norm.cu
// includes this file.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/floats.cuh"

namespace kernels {

constexpr int kNormPack = 4, kNormWarps = 4, kNormThreads = kNormWarps * kWarp;
using NormFloats = Floats<kNormPack>;

// Returns the number of packs that a lane keeps in registers for rows of this width. With 0, rows
// are read again.
constexpr int norm_packs(int64_t columns) {
  int64_t packs = (columns + kWarp * kNormPack - 1) / (kWarp * kNormPack);
  return packs <= 3 ? 3 : packs <= 6 ? 6 : packs <= 8 ? 8 : 0;
}

// Calls f(k, column) for each pack of the lane.
template <int kPacks, class F>
__device__ inline void for_packs(int64_t columns, const F& f) {
  int lane = threadIdx.x % kWarp;
  if constexpr (kPacks > 0) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (int column = (k * kWarp + lane) * kNormPack; column < columns) f(k, column);
  } else {
    for (int64_t column = lane * kNormPack; column < columns; column += kWarp * kNormPack)
      f(0, column);
  }
}

// A row, read once if it fits the registers.
template <bool kAligned, int kPacks, class T = float>
struct NormRow {
  const T* from;
  int64_t columns;
  NormFloats kept[kPacks > 0 ? kPacks : 1];

  __device__ NormRow(const T* row, int64_t count) : from(row), columns(count) {
    if constexpr (kPacks > 0)
      for_packs<kPacks>(columns, [&](int k, int64_t column) { kept[k] = read(column); });
  }
  __device__ NormFloats at(int k, int64_t column) const {
    if constexpr (kPacks > 0)
      return kept[k];
    else
      return read(column);
  }
  __device__ NormFloats read(int64_t column) const {
    return load<kAligned, kNormPack>(from + column, columns - column);
  }
};

}  // namespace kernels
