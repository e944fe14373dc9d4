// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of InfoNCE over views of examples. A block has the rows of an example.
#include "kernels/contrastive.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"

namespace kernels {
namespace {

constexpr int kContrastThreads = 256;

__device__ inline double log_add(double a, double b) {
  const double top = a > b ? a : b;
  return top == -double(INFINITY) ? top : top + log1p(exp(-fabs(a - b)));
}

__global__ void __launch_bounds__(kContrastThreads)
    contrast_terms(double* terms, float* loss, const float* logits, ContrastiveShape s) {
  __shared__ BlockShared<double> sums;
  __shared__ BlockShared<float> maxima;
  const int64_t example = int64_t(blockIdx.x);
  double total = 0;
  for (int64_t r = example * s.views; r < (example + 1) * s.views; ++r) {
    const float* x = logits + r * s.columns;
    const int64_t own = s.own(r), end = s.group_end(r);
    float top = -INFINITY;
    for (int64_t b = s.group_begin(r) + threadIdx.x; b < end; b += blockDim.x)
      if (b < own || b >= own + s.views) top = fmaxf(top, x[b]);
    top = block_max(top, maxima);
    double sum = 0;
    for (int64_t b = s.group_begin(r) + threadIdx.x; b < end; b += blockDim.x)
      if (b < own || b >= own + s.views) sum += exp(double(x[b]) - double(top));
    sum = block_sum(sum, sums);
    if (threadIdx.x != 0) continue;
    const double negatives = top == -INFINITY ? double(top) : double(top) + log(sum);
    double weight = -double(INFINITY);
    for (int64_t p = own; p < own + s.views; ++p) {
      if (p == s.first + r) continue;
      const double all = log_add(double(x[p]), negatives);
      total += all - double(x[p]);
      weight = log_add(weight, -all);
    }
    terms[2 * r] = negatives;
    terms[2 * r + 1] = weight;
  }
  if (threadIdx.x == 0) loss[example] = float(total / double(s.views * (s.views - 1)));
}

__global__ void __launch_bounds__(kContrastThreads)
    contrast_gradient(float* logits, const double* terms, const float* loss_scale, float scale,
                      ContrastiveShape s) {
  const int64_t r = int64_t(blockIdx.x), me = s.first + r, own = s.own(r);
  const int64_t begin = s.group_begin(r), end = s.group_end(r);
  const double factor = double(scale) * (loss_scale ? double(*loss_scale) : 1.0);
  float* x = logits + r * s.columns;
  const double my_negatives = terms[2 * me], my_weight = terms[2 * me + 1];
  for (int64_t b = threadIdx.x; b < s.columns; b += blockDim.x) {
    const double l = double(x[b]);
    float g = 0;
    if (b >= begin && b < end) {
      if (b < own || b >= own + s.views)
        g = expf(float(l + my_weight)) + expf(float(l + terms[2 * b + 1]));
      else if (b != me)
        g = -1 / (1 + expf(float(l - my_negatives))) - 1 / (1 + expf(float(l - terms[2 * b])));
    }
    x[b] = float(factor * double(g));
  }
}

}  // namespace

void run_cuda(const ContrastiveTerms& a, Queue& queue) {
  launch(contrast_terms, blocks_for(a.shape.rows / a.shape.views, 1), dim3(kContrastThreads), 0,
         queue, a.terms.f64(), a.loss.f32(), a.logits.f32(), a.shape);
}

void run_cuda(const ContrastiveGradient& a, Queue& queue) {
  launch(contrast_gradient, blocks_for(a.shape.rows, 1), dim3(kContrastThreads), 0, queue,
         a.logits.f32(), a.terms.f64(), a.loss_scale.none() ? nullptr : a.loss_scale.f32(), a.scale,
         a.shape);
}

}  // namespace kernels
