// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the loss of Barlow Twins. A block has a row; one block adds the rows'
// sums.
#include "kernels/barlow_terms.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"

namespace kernels {
namespace {

constexpr int kBarlowThreads = 256;

struct BarlowRows {
  float* products;
  const float* loss_scale;  // may be null
  double* sums;             // [width, 2]: diagonal, off
  int64_t width;
  double examples, factor, off_factor, scale;
};

__global__ void __launch_bounds__(kBarlowThreads) barlow_rows(BarlowRows a) {
  __shared__ BlockShared<double> shared;
  const int64_t i = int64_t(blockIdx.x);
  float* row = a.products + i * a.width;
  const double scale = a.scale * (a.loss_scale ? double(*a.loss_scale) : 1.0);
  double sum = 0;
  for (int64_t j = threadIdx.x; j < a.width; j += blockDim.x) {
    const double c = double(row[j]) / a.examples;
    if (j == i) {
      a.sums[2 * i] = (c - 1) * (c - 1);
      row[j] = float(scale * a.factor * (c - 1));
    } else {
      sum += c * c;
      row[j] = float(scale * a.off_factor * c);
    }
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.sums[2 * i + 1] = sum;
}

struct BarlowFill {
  float *loss, *diagonal, *off;
  int64_t loss_count, diagonal_count, off_count;
};

__global__ void __launch_bounds__(kBarlowThreads) barlow_loss(BarlowRows a, BarlowFill to) {
  __shared__ BlockShared<double> shared;
  double diagonal = 0, off = 0;
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    diagonal += a.sums[2 * i];
    off += a.sums[2 * i + 1];
  }
  diagonal = block_sum(diagonal, shared) * a.factor;
  off = block_sum(off, shared) * a.off_factor;
  for (int64_t i = threadIdx.x; i < to.loss_count; i += blockDim.x)
    to.loss[i] = float(diagonal + off);
  for (int64_t i = threadIdx.x; i < to.diagonal_count; i += blockDim.x)
    to.diagonal[i] = float(diagonal);
  for (int64_t i = threadIdx.x; i < to.off_count; i += blockDim.x) to.off[i] = float(off);
}

}  // namespace

void run_cuda(const BarlowTerms& a, Queue& queue) {
  const BarlowRows rows{a.products.f32(),
                        a.loss_scale.none() ? nullptr : a.loss_scale.f32(),
                        static_cast<double*>(queue.scratch(cuda_scratch(a))),
                        a.width,
                        a.examples,
                        double(a.factor),
                        double(a.factor) * double(a.lambda),
                        2 / a.examples * double(a.scale)};
  const BarlowFill fill{a.loss.f32(), a.diagonal.f32(), a.off.f32(),
                        a.loss.count, a.diagonal.count, a.off.count};
  launch(barlow_rows, blocks_for(a.width, 1), dim3(kBarlowThreads), 0, queue, rows);
  launch(barlow_loss, dim3(1), dim3(kBarlowThreads), 0, queue, rows, fill);
}

}  // namespace kernels
