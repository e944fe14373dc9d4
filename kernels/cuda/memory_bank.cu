// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the memory bank. The host does not check the index, because it never waits
// for the GPU: a place that does not exist reads as NaN, and is not written.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_shapes.hpp"
#include "kernels/l2_normalize.hpp"
#include "kernels/memory_bank.hpp"

namespace kernels {
namespace {

constexpr int kBankThreads = 128;

struct BankPlaces {
  const float* bank;
  const int32_t* index;  // null: the row's number
  int64_t columns, width, bank_rows, index_stride;

  // Returns null if there is no such row.
  __device__ const float* row(int64_t r, int64_t c) const {
    const int64_t at = index ? int64_t(index[r * index_stride + c]) : r;
    return at >= 0 && at < bank_rows ? bank + at * width : nullptr;
  }
};

template <class Args>
BankPlaces places_of(const Args& a) {
  return {a.bank.f32(), a.index.none() ? nullptr : a.index.i32(),   a.columns, a.width,
          a.bank_rows,  a.index_stride ? a.index_stride : a.columns};
}

// A warp has a score.
__global__ void __launch_bounds__(kBankThreads)
    bank_scores(float* scores, const float* x, BankPlaces at, int64_t rows, int64_t stride,
                double scale) {
  const int64_t item = int64_t(blockIdx.x) * (kBankThreads / kWarp) + threadIdx.x / kWarp;
  if (item >= rows * at.columns) return;
  const int64_t r = item / at.columns, c = item % at.columns;
  const float* row = at.row(r, c);
  double sum = row ? 0.0 : double(NAN);
  for (int64_t i = threadIdx.x % kWarp; row && i < at.width; i += kWarp)
    sum += double(x[r * at.width + i]) * double(row[i]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) scores[r * stride + c] = float(scale * sum);
}

// A block has a row, and a thread some of its elements.
__global__ void __launch_bounds__(kBankThreads)
    bank_gradient(float* dx, const float* d, BankPlaces at, int64_t stride, double scale,
                  bool add) {
  const int64_t r = int64_t(blockIdx.x);
  for (int64_t i = threadIdx.x; i < at.width; i += blockDim.x) {
    double sum = 0;
    for (int64_t c = 0; c < at.columns; ++c) {
      const float* row = at.row(r, c);
      sum += double(d[r * stride + c]) * (row ? double(row[i]) : double(NAN));
    }
    float& out = dx[r * at.width + i];
    out = add ? out + float(scale * sum) : float(scale * sum);
  }
}

__global__ void __launch_bounds__(kBankThreads)
    bank_update(float* bank, const float* x, const int32_t* index, int64_t count, int64_t width,
                int64_t bank_rows, double keep) {
  __shared__ BlockShared<double> shared;
  const int64_t me = int64_t(blockIdx.x), place = index[me];
  double later = place < 0 || place >= bank_rows;
  for (int64_t i = me + 1 + threadIdx.x; i < count; i += blockDim.x) later += index[i] == place;
  if (block_sum(later, shared) > 0) return;
  float* row = bank + place * width;
  double square = 0;
  for (int64_t k = threadIdx.x; k < width; k += blockDim.x) {
    row[k] = float(keep * double(row[k]) + (1 - keep) * double(x[me * width + k]));
    square += double(row[k]) * double(row[k]);
  }
  const double length = sqrt(block_sum(square, shared));
  const double inverse = 1 / (length > double(kLeastLength) ? length : double(kLeastLength));
  for (int64_t k = threadIdx.x; k < width; k += blockDim.x)
    row[k] = float(double(row[k]) * inverse);
}

}  // namespace

void run_cuda(const BankScores& a, Queue& queue) {
  launch(bank_scores, blocks_for(a.rows * a.columns, kBankThreads / kWarp), dim3(kBankThreads), 0,
         queue, a.scores.f32(), a.x.f32(), places_of(a), a.rows, a.stride ? a.stride : a.columns,
         double(a.scale));
}

void run_cuda(const BankGradient& a, Queue& queue) {
  launch(bank_gradient, blocks_for(a.rows, 1), dim3(kBankThreads), 0, queue, a.dx.f32(), a.d.f32(),
         places_of(a), a.stride ? a.stride : a.columns, double(a.scale),
         a.write == Write::accumulate);
}

void run_cuda(const BankUpdate& a, Queue& queue) {
  launch(bank_update, blocks_for(a.count, 1), dim3(kBankThreads), 0, queue, a.bank.f32(), a.x.f32(),
         a.index.i32(), a.count, a.width, a.bank_rows, double(a.momentum));
}

}  // namespace kernels
