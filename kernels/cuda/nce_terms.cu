// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of noise-contrastive estimation. A block has a row.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/nce_terms.hpp"

namespace kernels {
namespace {

constexpr int kNceThreads = 256;

__global__ void __launch_bounds__(kNceThreads)
    nce_row_sums(double* sums, const float* logits, int64_t columns) {
  __shared__ BlockShared<double> shared;
  const float* x = logits + int64_t(blockIdx.x) * columns;
  double sum = 0;
  for (int64_t k = threadIdx.x; k < columns; k += blockDim.x) sum += exp(double(x[k]));
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kNceThreads)
    nce_add_rows(double* total, const double* sums, int64_t rows) {
  __shared__ BlockShared<double> shared;
  double sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) sum += sums[r];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *total = sum;
}

__global__ void nce_constant(float* constant, const double* total, double count, double samples) {
  if (*constant < 0) *constant = float(*total / count * samples);
}

struct NceRows {
  float *logits, *loss;
  const float *constant, *loss_scale;  // either may be null
  int64_t columns;
  double samples, factor, scale;
  bool softmax, add;
};

__global__ void __launch_bounds__(kNceThreads) nce_rows(NceRows a) {
  __shared__ BlockShared<double> shared;
  const int64_t n = a.columns;
  float* x = a.logits + int64_t(blockIdx.x) * n;
  const double scale = a.scale * (a.loss_scale ? double(*a.loss_scale) : 1.0);
  double loss = 0;
  if (a.softmax) {
    double top = -double(INFINITY), sum = 0;
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x)
      top = double(x[k]) > top ? double(x[k]) : top;
    top = block_max(top, shared);
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) sum += exp(double(x[k]) - top);
    sum = block_sum(sum, shared);
    loss = log(sum) - (double(x[0]) - top);
    __syncthreads();  // all have read x[0]
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x)
      x[k] = float(scale * (exp(double(x[k]) - top) / sum - (k == 0 ? 1.0 : 0.0)));
  } else {
    const double z = double(*a.constant), noise = double(n - 1) / a.samples,
                 c = noise + NceTerms::kNceLeast;
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) {
      const double p = exp(double(x[k])) / z;
      loss -= k == 0 ? log(p / (p + c)) : log(noise / (p + c));
      x[k] = float(scale * (k == 0 ? -c : p) / (p + c));
    }
    loss = block_sum(loss, shared);
  }
  if (threadIdx.x == 0)
    a.loss[blockIdx.x] = float((a.add ? double(a.loss[blockIdx.x]) : 0.0) + a.factor * loss);
}

}  // namespace

void run_cuda(const NceTotals& a, Queue& queue) {
  auto* sums = static_cast<double*>(queue.scratch(cuda_scratch(a)));
  launch(nce_row_sums, blocks_for(a.rows, 1), dim3(kNceThreads), 0, queue, sums, a.logits.f32(),
         a.columns);
  launch(nce_add_rows, dim3(1), dim3(kNceThreads), 0, queue, a.total.f64(), sums, a.rows);
}

void run_cuda(const NceConstant& a, Queue& queue) {
  launch(nce_constant, dim3(1), dim3(1), 0, queue, a.constant.f32(), a.total.f64(), a.count,
         a.samples);
}

void run_cuda(const NceTerms& a, Queue& queue) {
  const NceRows rows{a.logits.f32(),
                     a.loss.f32(),
                     a.constant.none() ? nullptr : a.constant.f32(),
                     a.loss_scale.none() ? nullptr : a.loss_scale.f32(),
                     a.columns,
                     a.samples,
                     double(a.factor),
                     double(a.factor) * double(a.scale),
                     a.kind == NceKind::softmax,
                     a.loss_write == Write::accumulate};
  launch(nce_rows, blocks_for(a.rows, 1), dim3(kNceThreads), 0, queue, rows);
}

}  // namespace kernels
