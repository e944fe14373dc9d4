// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the cross-entropy with targets. A block reads its row a few times; rows
// are few, one per example.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/target_xent.hpp"

namespace kernels {
namespace {

constexpr int kTargetThreads = 256;

struct TargetRows {
  float* logits;
  const float* targets;
  const float *weights, *loss_scale;  // may be null
  float* loss;
  float* hits;  // may be null
  int64_t columns;
  bool sigmoid, gradient;
  float scale;
  ClassLoss kind;
  float beta;
};

// The row of a loss that compares the values themselves.
__device__ void error_row(const TargetRows& a, float* x, const float* t,
                          BlockShared<double>& sums) {
  const int64_t n = a.columns;
  const float scale = a.scale * (a.loss_scale ? *a.loss_scale : 1);
  double part = 0;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const double error = double(x[c]) - double(t[c]), w = a.weights ? double(a.weights[c]) : 1.0;
    part += w * error_loss(a.kind, error, double(a.beta));
    if (a.gradient)
      x[c] = float(double(scale) * w * error_slope(a.kind, error, double(a.beta)) / double(n));
  }
  const double sum = block_sum(part, sums);
  if (threadIdx.x == 0) a.loss[blockIdx.x] = float(sum / double(n));
}

// 1 if the first of the largest known logits has the largest target.
__device__ bool is_hit(const float* x, const float* t, int64_t n, BlockShared<float>& maxima,
                       BlockShared<double>& places) {
  float most = 0, top = -INFINITY;
  bool unordered = false;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x)
    if (t[c] >= 0) {
      most = fmaxf(most, t[c]);
      unordered = unordered || x[c] != x[c];
      top = fmaxf(top, x[c]);
    }
  most = block_max(most, maxima);
  top = block_max(top, maxima);
  const bool nan = block_max(unordered ? 1.0f : 0.0f, maxima) > 0;
  // The last NaN wins on the CPU, where each one counts as larger than what came before.
  double place = nan ? -1.0 : -double(n);
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    if (!(t[c] >= 0)) continue;
    if (nan && x[c] != x[c]) place = double(c) > place ? double(c) : place;
    if (!nan && x[c] == top) place = -double(c) > place ? -double(c) : place;
  }
  place = block_max(place, places);
  const int64_t first = nan ? int64_t(place) : int64_t(-place);
  return first >= 0 && first < n && most > 0 && t[first] == most;
}

__global__ void __launch_bounds__(kTargetThreads) target_rows(TargetRows a) {
  __shared__ BlockShared<double> sums;
  __shared__ BlockShared<float> maxima;
  const int64_t row = int64_t(blockIdx.x), n = a.columns;
  float* x = a.logits + row * n;
  const float* t = a.targets + row * n;
  if (a.hits) {
    const bool hit = is_hit(x, t, n, maxima, sums);
    if (threadIdx.x == 0) a.hits[row] = hit ? 1.0f : 0.0f;
  }
  if (compares_values(a.kind)) {
    error_row(a, x, t, sums);
    return;
  }
  float top = -INFINITY;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) top = fmaxf(top, x[c]);
  top = block_max(top, maxima);

  double part = 0, mass = 0, product = 0;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const float v = x[c];
    const bool known = t[c] >= 0;
    const double w = known ? (a.weights ? double(a.weights[c]) : 1.0) : 0.0;
    if (a.sigmoid) {
      if (known)
        part += w * (double(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v)))) - double(t[c]) * double(v));
      continue;
    }
    part += double(expf(v - top));
    if (!known) continue;
    mass += w * double(t[c]);
    product += w * double(t[c]) * (double(v) - double(top));
  }
  const double sum = block_sum(part, sums);
  mass = block_sum(mass, sums);
  product = block_sum(product, sums);
  if (threadIdx.x == 0) a.loss[row] = float(a.sigmoid ? sum : mass * log(sum) - product);
  if (!a.gradient) return;
  const float scale = a.scale * (a.loss_scale ? *a.loss_scale : 1);
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const float v = x[c], e = expf(-fabsf(v));
    const bool known = t[c] >= 0;
    const float w = known ? (a.weights ? a.weights[c] : 1.0f) : 0.0f;
    if (a.sigmoid)
      x[c] = known ? scale * w * ((v >= 0 ? 1 : e) / (1 + e) - t[c]) : 0.0f;
    else
      x[c] = scale * float(mass * double(expf(v - top)) / sum - (known ? double(w * t[c]) : 0.0));
  }
}

}  // namespace

void run_cuda(const TargetXent& a, Queue& queue) {
  const TargetRows rows{.logits = a.logits.f32(),
                        .targets = a.targets.f32(),
                        .weights = a.weights.none() ? nullptr : a.weights.f32(),
                        .loss_scale = a.loss_scale.none() ? nullptr : a.loss_scale.f32(),
                        .loss = a.loss.f32(),
                        .hits = a.hits.none() ? nullptr : a.hits.f32(),
                        .columns = a.columns,
                        .sigmoid = a.kind == ClassLoss::sigmoid,
                        .gradient = a.gradient,
                        .scale = a.scale,
                        .kind = a.kind,
                        .beta = a.beta};
  launch(target_rows, blocks_for(a.rows, 1), dim3(kTargetThreads), 0, queue, rows);
}

}  // namespace kernels
