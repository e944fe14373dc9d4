// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the cross-entropy between views. A block has the scores of a view.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/view_xent.hpp"

namespace kernels {
namespace {

constexpr int kViewThreads = 256;

__global__ void __launch_bounds__(kViewThreads)
    soft_targets(float* y, const float* x, const float* centre, int64_t columns, double cold) {
  __shared__ BlockShared<double> shared;
  const int64_t row = int64_t(blockIdx.x) * columns;
  double top = -double(INFINITY), sum = 0;
  for (int64_t k = threadIdx.x; k < columns; k += blockDim.x) {
    const double v = double(x[row + k]) - double(centre[k]);
    top = v > top ? v : top;
  }
  top = block_max(top, shared);
  for (int64_t k = threadIdx.x; k < columns; k += blockDim.x) {
    const double e = exp((double(x[row + k]) - double(centre[k]) - top) * cold);
    sum += e;
    y[row + k] = float(e);
  }
  const float factor = float(1 / block_sum(sum, shared));
  for (int64_t k = threadIdx.x; k < columns; k += blockDim.x) y[row + k] *= factor;
}

struct ViewRows {
  const float *scores, *targets, *loss_scale;  // loss_scale may be null
  float* gradient;                             // may be null
  double* losses;                              // [examples * views]
  int64_t views, columns, target_count;
  std::array<int32_t, ViewXent::kMostTargets> views_of_targets;
  double cold, scale;

  __device__ bool compares(int64_t view, int64_t target) const {
    return views_of_targets.data()[target] != view;
  }
};

__global__ void __launch_bounds__(kViewThreads) view_rows(ViewRows a) {
  __shared__ BlockShared<double> shared;
  const int64_t row = int64_t(blockIdx.x), view = row % a.views, n = a.columns;
  const float *x = a.scores + row * n, *targets = a.targets + row / a.views * a.target_count * n;
  double top = -double(INFINITY), sum = 0;
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x)
    top = double(x[k]) > top ? double(x[k]) : top;
  top = block_max(top, shared);
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x) sum += exp((double(x[k]) - top) * a.cold);
  sum = block_sum(sum, shared);
  double all = 0, part = 0;
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x)
    for (int64_t t = 0; t < a.target_count; ++t)
      if (a.compares(view, t)) {
        all += double(targets[t * n + k]);
        part += double(targets[t * n + k]) * (double(x[k]) - top);
      }
  all = block_sum(all, shared);
  part = block_sum(part, shared);
  if (threadIdx.x == 0) a.losses[row] = all * log(sum) - part * a.cold;
  if (!a.gradient) return;
  const double scale = a.scale * a.cold * (a.loss_scale ? double(*a.loss_scale) : 1.0);
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x) {
    double g = all * exp((double(x[k]) - top) * a.cold) / sum;
    for (int64_t t = 0; t < a.target_count; ++t)
      if (a.compares(view, t)) g -= double(targets[t * n + k]);
    a.gradient[row * n + k] = float(scale * g);
  }
}

__global__ void __launch_bounds__(kViewThreads)
    add_views(float* loss, const double* losses, int64_t examples, int64_t views, double factor,
              bool add) {
  const int64_t b = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (b >= examples) return;
  double sum = 0;
  for (int64_t v = 0; v < views; ++v) sum += losses[b * views + v];
  loss[b] = float((add ? double(loss[b]) : 0.0) + factor * sum);
}

}  // namespace

void run_cuda(const SoftTargets& a, Queue& queue) {
  launch(soft_targets, blocks_for(a.rows, 1), dim3(kViewThreads), 0, queue, a.y.f32(), a.x.f32(),
         a.centre.f32(), a.columns, 1 / double(a.temperature));
}

void run_cuda(const ViewXent& a, Queue& queue) {
  const double part = double(a.factor) / double(a.pairs());
  const ViewRows rows{a.scores.f32(),
                      a.targets.f32(),
                      a.loss_scale.none() ? nullptr : a.loss_scale.f32(),
                      a.gradient.none() ? nullptr : a.gradient.f32(),
                      static_cast<double*>(queue.scratch(cuda_scratch(a))),
                      a.views,
                      a.columns,
                      a.target_count,
                      a.views_of_targets,
                      1 / double(a.temperature),
                      part * double(a.scale)};
  launch(view_rows, blocks_for(a.examples * a.views, 1), dim3(kViewThreads), 0, queue, rows);
  launch(add_views, blocks_for(a.examples, kViewThreads), dim3(kViewThreads), 0, queue,
         a.loss.f32(), rows.losses, a.examples, a.views, part, a.loss_write == Write::accumulate);
}

}  // namespace kernels
