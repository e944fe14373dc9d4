// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of rows of unit length. A warp has a row.
#include "base/narrow.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/many.cuh"
#include "kernels/unit_rows.hpp"

namespace kernels {
namespace {

constexpr int kRowWarps = 8, kRowThreads = 32 * kRowWarps;

// The part of a matrix in the argument of a launch.
struct RowItem {
  float* x;
  double* sums;
  const float* decided;  // may be null
  int64_t begin, count, width;

  // Number of rows that the part touches.
  int64_t rows() const { return count == 0 ? 0 : (begin + count - 1) / width - begin / width + 1; }
};

// A warp's row, and its elements [first, last) of the part; empty past the last row.
struct RowOfWarp {
  int64_t row, first, last;
};
__device__ RowOfWarp row_of_warp(const RowItem& a, uint32_t block) {
  const int64_t row = a.begin / a.width + int64_t(block) * kRowWarps + threadIdx.x / 32;
  const int64_t first = row * a.width - a.begin, last = first + a.width;
  return {row, first > 0 ? first : 0, last < a.count ? last : a.count};
}

__global__ void __launch_bounds__(kRowThreads)
    sum_rows(const ManyItems<RowItem> __grid_constant__ all) {
  const Share share = share_of_block(all);
  const RowItem& a = all.items[share.item];
  const RowOfWarp r = row_of_warp(a, share.block);
  double sum = 0;
  for (int64_t i = r.first + threadIdx.x % 32; i < r.last; i += 32)
    sum = fma(double(a.x[i]), double(a.x[i]), sum);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0 && r.first < r.last) a.sums[r.row] = sum;
}

__global__ void __launch_bounds__(kRowThreads)
    divide_rows(const ManyItems<RowItem> __grid_constant__ all) {
  const Share share = share_of_block(all);
  const RowItem& a = all.items[share.item];
  const RowOfWarp r = row_of_warp(a, share.block);
  if (r.first >= r.last || (a.decided && a.decided[2] == 0)) return;
  const double root = sqrt(a.sums[r.row]);
  const auto norm = float(root > kLeastRowNorm ? root : kLeastRowNorm);
  for (int64_t i = r.first + threadIdx.x % 32; i < r.last; i += 32) a.x[i] /= norm;
}

template <class Args, class Kernel>
void run_rows(std::span<const Args> all, Kernel* kernel, Queue& queue) {
  ManyLaunch rows(kernel, kRowThreads, queue);
  for (const Args& a : all) {
    RowItem item{a.x.f32(), a.sums.f64(), nullptr, a.begin, a.x.count, a.width};
    if constexpr (requires { a.decided; })
      if (!a.decided.none()) item.decided = a.decided.f32();
    rows.add(item, base::ceil_div(item.rows(), int64_t(kRowWarps)));
  }
  rows.start();
}

}  // namespace

void run_cuda(std::span<const RowSquares> all, Queue& queue) { run_rows(all, sum_rows, queue); }
void run_cuda(std::span<const UnitRows> all, Queue& queue) { run_rows(all, divide_rows, queue); }

}  // namespace kernels
