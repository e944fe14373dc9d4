// SPDX-License-Identifier: Apache-2.0
// Draws of a random stream on the GPU. They equal the draws of base::Stream on the CPU.
#pragma once

#include "base/random.hpp"
#include "device/cuda.hpp"

namespace kernels {

// Returns word i of a Philox block. Comparisons keep the block in registers; an indexed array would
// be stored in memory.
__device__ inline uint32_t word_of(const base::Philox4& block, unsigned i) {
  return i == 0 ? block[0] : i == 1 ? block[1] : i == 2 ? block[2] : block[3];
}

// Converts a word to a number in [0, 1).
__device__ inline float uniform_of(uint32_t word) { return float(word >> 8) * 0x1p-24f; }

// Returns stream.uniform(index).
__device__ inline float uniform_draw(const base::Stream& stream, uint64_t index) {
  return uniform_of(word_of(stream.block(index / 4), unsigned(index % 4)));
}

// Returns stream.normal(index), up to the roundings of the GPU's logarithm and cosine.
__device__ inline double normal_draw(const base::Stream& stream, uint64_t index) {
  const base::Philox4 b = stream.block(index);
  const double u = (double(uint64_t(b[1]) << 21 ^ b[0] >> 11) + 0.5) * 0x1p-53;
  const double v = double(uint64_t(b[3]) << 21 ^ b[2] >> 11) * 0x1p-53;
  const double radius = sqrt(-2 * log(u));
#ifdef __CUDA_ARCH__
  return radius * cospi(2 * v);  // cos reduces its argument in memory
#else
  return radius * std::cos(6.283185307179586476925 * v);
#endif
}

}  // namespace kernels
