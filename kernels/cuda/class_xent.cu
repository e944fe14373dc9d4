// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the cross-entropy over classes. A block reads its row three times; rows
// are few, one per example.
#include "base/narrow.hpp"
#include "kernels/class_xent.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"

namespace kernels {
namespace {

constexpr int kClassThreads = 256;

struct ClassRows {
  float* logits;
  const int32_t *labels, *others;
  const float *shares, *loss_scale;  // may be null
  float* loss;
  int32_t* ranks;  // may be null
  int64_t columns;
  ClassTarget target;
  bool gradient;
  float scale;
  ClassLoss kind;
  float beta;
};

// The row of a loss that compares the values themselves.
__device__ void error_row(const ClassRows& a, float* x, const ClassTarget& q,
                          BlockShared<double>& sums) {
  const int64_t n = a.columns;
  const float scale = a.scale * (a.loss_scale ? *a.loss_scale : 1);
  double part = 0;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const double error = double(x[c]) - double(q.at(c));
    part += error_loss(a.kind, error, double(a.beta));
    if (a.gradient)
      x[c] = float(double(scale) * error_slope(a.kind, error, double(a.beta)) / double(n));
  }
  const double sum = block_sum(part, sums);
  if (threadIdx.x == 0) a.loss[blockIdx.x] = float(sum / double(n));
}

__global__ void __launch_bounds__(kClassThreads) class_rows(ClassRows a) {
  __shared__ BlockShared<double> sums;
  __shared__ BlockShared<float> maxima;
  const int64_t row = int64_t(blockIdx.x), n = a.columns;
  float* x = a.logits + row * n;
  ClassTarget q = a.target;
  q.label = a.labels[row];
  q.other = a.others[row];
  if (a.shares) q.share = a.shares[row];
  if (q.label < 0) {
    if (threadIdx.x == 0) {
      a.loss[row] = 0;
      if (a.ranks) a.ranks[row] = int32_t(n);
    }
    for (int64_t c = threadIdx.x; a.gradient && c < n; c += blockDim.x) x[c] = 0;
    return;
  }
  const float mine = x[q.label], other = x[q.other];

  float top = -INFINITY;
  double above = 0;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const float v = x[c];
    top = fmaxf(top, v);
    above += c != q.label && (!(v <= mine) || (c < q.label && v == mine));
  }
  top = block_max(top, maxima);
  if (a.ranks) {
    const double rank = block_sum(above, sums) + (n == 1 && mine != mine);
    if (threadIdx.x == 0) a.ranks[row] = int32_t(rank);
  }

  if (compares_values(a.kind)) {
    error_row(a, x, q, sums);
    return;
  }
  double part = 0, shifted = 0;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const float v = x[c];
    if (a.kind == ClassLoss::sigmoid) {
      part += double(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v)))) - double(q.at(c)) * double(v);
    } else {
      part += double(expf(v - top));
      shifted += double(v) - double(top);
    }
  }
  const double sum = block_sum(part, sums);
  shifted = block_sum(shifted, sums);
  if (threadIdx.x == 0) {
    const double blend = double(q.share) * (double(mine) - double(top)) +
                         (1 - double(q.share)) * (double(other) - double(top));
    a.loss[row] = float(a.kind == ClassLoss::sigmoid
                            ? sum
                            : log(sum) - (double(q.off) * shifted + double(q.lift) * blend));
  }
  if (!a.gradient) return;
  const float scale = a.scale * (a.loss_scale ? *a.loss_scale : 1);
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const float v = x[c], e = expf(-fabsf(v));
    const float p = a.kind == ClassLoss::sigmoid ? (v >= 0 ? 1 : e) / (1 + e)
                                                 : float(double(expf(v - top)) / sum);
    x[c] = scale * (p - q.at(c));
  }
}

}  // namespace

void run_cuda(const ClassXent& a, Queue& queue) {
  const ClassRows rows{.logits = a.logits.f32(),
                       .labels = a.labels.i32(),
                       .others = a.others.none() ? a.labels.i32() : a.others.i32(),
                       .shares = a.shares.none() ? nullptr : a.shares.f32(),
                       .loss_scale = a.loss_scale.none() ? nullptr : a.loss_scale.f32(),
                       .loss = a.loss.f32(),
                       .ranks = a.ranks.none() ? nullptr : a.ranks.i32(),
                       .columns = a.columns,
                       .target = class_target(a.smoothing, a.columns),
                       .gradient = a.gradient,
                       .scale = a.scale,
                       .kind = a.kind,
                       .beta = a.beta};
  launch(class_rows, blocks_for(a.rows, 1), dim3(kClassThreads), 0, queue, rows);
}

}  // namespace kernels
