// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of rows divided by their length, a block per row.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/l2_normalize.hpp"

namespace kernels {
namespace {

constexpr int kLengthThreads = 128;

struct LengthRows {
  float *y, *inverse;          // inverse may be null
  const float *x, *row_scale;  // row_scale may be null
  int64_t width;
  float scale;
};

__global__ void __launch_bounds__(kLengthThreads) length_rows(LengthRows a) {
  __shared__ BlockShared<double> shared;
  const int64_t row = int64_t(blockIdx.x);
  const float* x = a.x + row * a.width;
  double square = 0;
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) square += double(x[i]) * double(x[i]);
  square = block_sum(square, shared);
  const double length = sqrt(square),
               inverse = 1 / (length > double(kLeastLength) ? length : double(kLeastLength));
  const float factor =
      float(double(a.scale) * (a.row_scale ? double(a.row_scale[row]) : 1.0) * inverse);
  if (a.inverse && threadIdx.x == 0) a.inverse[row] = float(inverse);
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x)
    a.y[row * a.width + i] = x[i] * factor;
}

struct LengthGradientRows {
  float *dx, *drow_scale;  // may be null
  const float *dy, *x, *inverse, *row_scale;
  int64_t width;
  float scale;
  bool add, add_row_scale;
};

__global__ void __launch_bounds__(kLengthThreads) length_gradient_rows(LengthGradientRows a) {
  __shared__ BlockShared<double> shared;
  const int64_t row = int64_t(blockIdx.x);
  const float *x = a.x + row * a.width, *dy = a.dy + row * a.width;
  const float inverse = a.inverse[row];
  double along = 0;
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) along += double(x[i]) * double(dy[i]);
  along = block_sum(along, shared) * double(inverse);
  if (a.drow_scale && threadIdx.x == 0) {
    const float value = float(double(a.scale) * along);
    a.drow_scale[row] = a.add_row_scale ? a.drow_scale[row] + value : value;
  }
  if (!a.dx) return;
  const float factor =
      float(double(a.scale) * (a.row_scale ? double(a.row_scale[row]) : 1.0) * double(inverse));
  const float part = inverse >= 1 / kLeastLength ? 0.0f : float(along * double(inverse));
  float* dx = a.dx + row * a.width;
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    const float g = factor * (dy[i] - x[i] * part);
    dx[i] = a.add ? dx[i] + g : g;
  }
}

float* optional(const View& v) { return v.none() ? nullptr : v.f32(); }

}  // namespace

void run_cuda(const L2NormalizeForward& a, Queue& queue) {
  const LengthRows rows{a.y.f32(), optional(a.inverse), a.x.f32(), optional(a.row_scale), a.width,
                        a.scale};
  launch(length_rows, blocks_for(a.rows, 1), dim3(kLengthThreads), 0, queue, rows);
}

void run_cuda(const L2NormalizeBackward& a, Queue& queue) {
  const LengthGradientRows rows{optional(a.dx),
                                optional(a.drow_scale),
                                a.dy.f32(),
                                a.x.f32(),
                                a.inverse.f32(),
                                optional(a.row_scale),
                                a.width,
                                a.scale,
                                a.write == Write::accumulate,
                                a.row_scale_write == Write::accumulate};
  launch(length_gradient_rows, blocks_for(a.rows, 1), dim3(kLengthThreads), 0, queue, rows);
}

}  // namespace kernels
