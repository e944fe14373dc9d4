// SPDX-License-Identifier: Apache-2.0
// Cuts of the work of CUDA ops: plain arithmetic on sizes and addresses, tested without a GPU. No
// cut depends on the device, so the bits of sums do not either.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "device/types.hpp"

namespace kernels {

constexpr int kWarp = 32;

// Elements per block in sums of squares, and in updates.
constexpr int64_t kSquareCudaBlock = 16384, kUpdateCudaBlock = 4096;

// Returns the number of doubles that blocks write before all are added. A single block writes the
// result itself, so it needs none.
inline int64_t partial_doubles(int64_t blocks, int64_t sums) {
  return blocks == 1 ? 0 : blocks * sums;
}

// True if packs of `pack` elements fit all views. Rows of `row` elements must be whole packs. The
// views must be aligned to words of 16 bytes, or of a pack's bytes if they are fewer.
inline bool packs_fit(int pack, int64_t row, std::initializer_list<device::View> views) {
  if (row % pack != 0) return false;
  for (const device::View& v : views) {
    int64_t word = std::min<int64_t>(16, pack * device::size_of(v.type));
    if (reinterpret_cast<uintptr_t>(v.data) % uintptr_t(word) != 0) return false;
  }
  return true;
}

// Returns the elements per access of patchify. Packs do not cross from one row of a patch to the
// next, and keep their alignment in all rows of the image.
inline int patchify_pack(int64_t patch_row, int64_t image_row, int64_t next_patch,
                         const device::View& patches, const device::View& image) {
  for (int pack : {4, 2})
    if ((image_row | next_patch) % pack == 0 && packs_fit(pack, patch_row, {patches, image}))
      return pack;
  return 1;
}

// Cuts rows into blocks for a sum over rows. The blocks are enough to fill any GPU, and few enough
// for the second stage, which adds their sums in order. The number of rows alone decides.
struct RowCuts {
  int64_t rows, block;
  RowCuts(int64_t rows_, int64_t least, int64_t most)
      : rows(rows_), block(std::max(least, (rows_ + most - 1) / most)) {}
  int64_t count() const { return (rows + block - 1) / block; }
};
inline RowCuts column_sum_cuts(int64_t rows) { return RowCuts(rows, 64, 256); }
// 768 blocks of four warps fill the largest GPU about twice. Their sums are 1 % of the traffic.
inline RowCuts norm_backward_cuts(int64_t rows) { return RowCuts(rows, 16, 768); }
// Sums over the pixels of images: few channels have many rows.
inline RowCuts batch_norm_cuts(int64_t rows) { return RowCuts(rows, 64, 256); }

}  // namespace kernels
