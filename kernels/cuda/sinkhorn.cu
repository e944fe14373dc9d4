// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of Sinkhorn's assignment. A block has a row of q.
#include "base/narrow.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/sinkhorn.hpp"

namespace kernels {
namespace {

constexpr int kSinkhornThreads = 256;
constexpr float kLowest = -3.402823466e38f, kHighest = 3.402823466e38f;

template <class F>
void with_wide(DType type, const F& f) {
  if (type == DType::f64)
    f(double{});
  else
    f(float{});
}

template <class T>
__global__ void __launch_bounds__(kSinkhornThreads)
    add_columns(double* totals, const T* x, int64_t rows, int64_t columns) {
  const int64_t c = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += double(x[r * columns + c]);
  totals[c] = sum;
}

__global__ void __launch_bounds__(kSinkhornThreads)
    finite_maximum(float* maximum, const float* x, int64_t rows, int64_t columns, int64_t stride) {
  __shared__ BlockShared<float> shared;
  float top = kLowest;
  for (int64_t i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    const float v = x[i / columns * stride + i % columns];
    if (v > top && v <= kHighest) top = v;
  }
  top = block_max(top, shared);
  if (threadIdx.x == 0) *maximum = top;
}

template <class T>
struct StartRows {
  T* q;
  const float *scores, *maxima;
  int64_t columns, stride, count;
  double epsilon;
};

template <class T>
__global__ void __launch_bounds__(kSinkhornThreads) start_rows(StartRows<T> a) {
  const int64_t r = int64_t(blockIdx.x);
  float top = a.maxima[0];
  for (int64_t i = 1; i < a.count; ++i) top = fmaxf(top, a.maxima[i]);
  for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
    const float s = a.scores[r * a.stride + c];
    const double v = double(s > top ? top : s) - double(top);
    a.q[r * a.columns + c] = T(exp(v / a.epsilon));
  }
}

// factors[c] for every column; factors[columns]: what is added to q before.
struct FactorArgs {
  double* factors;
  const double* totals;
  int64_t columns;
  double samples;
  bool first;
};

__global__ void __launch_bounds__(kSinkhornThreads) column_factors(FactorArgs a) {
  __shared__ BlockShared<double> shared;
  double all = 0, empty = 0;
  for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
    all += a.totals[c];
    empty += a.totals[c] == 0;
  }
  all = block_sum(all, shared);
  empty = block_sum(empty, shared);
  const double by = a.first ? 1 / all : 1, add = empty > 0 ? kSinkhornLeast : 0;
  for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
    const double factor = 1 / (double(a.columns) * (a.totals[c] * by + add * a.samples));
    // q is multiplied by `by` before the addition, so the sum is by * (q + add / by).
    a.factors[c] = factor * by;
  }
  if (threadIdx.x == 0) a.factors[a.columns] = add / by;
}

template <class T>
struct ScaleRows {
  T* q;
  const double* factors;  // null: only rows are divided
  float* targets;         // null: none
  int64_t columns, target_rows, target_stride;
  double samples;
  bool hard;
};

template <class T>
__global__ void __launch_bounds__(kSinkhornThreads) scale_rows(ScaleRows<T> a) {
  __shared__ BlockShared<double> shared;
  const int64_t r = int64_t(blockIdx.x);
  T* q = a.q + r * a.columns;
  double sum = 0, top = -1;
  for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
    if (a.factors) q[c] = T((double(q[c]) + a.factors[a.columns]) * a.factors[c]);
    sum += double(q[c]);
    top = double(q[c]) > top ? double(q[c]) : top;
  }
  sum = block_sum(sum, shared);
  if (!a.targets) {
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x)
      q[c] = T(double(q[c]) / (a.samples * sum));
    return;
  }
  if (r >= a.target_rows) return;
  float* target = a.targets + r * a.target_stride;
  if (!a.hard) {
    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x)
      target[c] = float(double(q[c]) / sum);
    return;
  }
  top = block_max(top, shared);
  double place = -double(a.columns);  // minus the first column that holds the maximum
  for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x)
    if (double(q[c]) == top && -double(c) > place) place = -double(c);
  place = block_max(place, shared);
  for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x)
    target[c] = sum != sum ? float(sum) : -double(c) == place ? 1.0f : 0.0f;
}

}  // namespace

void run_cuda(const ColumnTotals& a, Queue& queue) {
  with_wide(a.x.type, [&](auto element) {
    using T = decltype(element);
    launch(add_columns<T>, blocks_for(a.columns, kSinkhornThreads), dim3(kSinkhornThreads), 0,
           queue, a.totals.f64(), static_cast<const T*>(a.x.data), a.rows, a.columns);
  });
}

void run_cuda(const FiniteMaximum& a, Queue& queue) {
  launch(finite_maximum, dim3(1), dim3(kSinkhornThreads), 0, queue, a.maximum.f32(), a.x.f32(),
         a.rows, a.columns, a.stride ? a.stride : a.columns);
}

void run_cuda(const SinkhornStart& a, Queue& queue) {
  with_wide(a.q.type, [&](auto element) {
    using T = decltype(element);
    const StartRows<T> rows{
        static_cast<T*>(a.q.data),       a.scores.f32(), a.maxima.f32(),   a.columns,
        a.stride ? a.stride : a.columns, a.maxima.count, double(a.epsilon)};
    launch(start_rows<T>, blocks_for(a.rows, 1), dim3(kSinkhornThreads), 0, queue, rows);
  });
}

void run_cuda(const SinkhornScale& a, Queue& queue) {
  double* factors = nullptr;
  if (!a.totals.none()) {
    factors = static_cast<double*>(queue.scratch(cuda_scratch(a)));
    const FactorArgs args{factors, a.totals.f64(), a.columns, double(a.samples), a.first};
    launch(column_factors, dim3(1), dim3(kSinkhornThreads), 0, queue, args);
  }
  with_wide(a.q.type, [&](auto element) {
    using T = decltype(element);
    const ScaleRows<T> rows{static_cast<T*>(a.q.data),
                            factors,
                            a.targets.none() ? nullptr : a.targets.f32(),
                            a.columns,
                            a.target_rows,
                            a.target_stride ? a.target_stride : a.columns,
                            double(a.samples),
                            a.hard};
    launch(scale_rows<T>, blocks_for(a.rows, 1), dim3(kSinkhornThreads), 0, queue, rows);
  });
}

}  // namespace kernels
