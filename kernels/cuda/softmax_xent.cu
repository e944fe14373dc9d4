// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of softmax cross-entropy, a block per row. In rows of up to 32,768 columns a
// thread keeps its 32 logits in registers, so the row is read once and its gradient written once.
// Longer rows, and rows that are not whole packs, are read three times.
#include "base/narrow.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/floats.cuh"
#include "kernels/softmax_xent.hpp"

namespace kernels {
namespace {

constexpr int kXentPack = 4, kXentPacks = 8, kXentColumns = kXentPack * kXentPacks,
              kXentMostThreads = 1024;

// T is the type of the gradient.
template <class T>
struct XentRows {
  float* logits;
  T* gradient;  // may be the logits
  const int32_t* labels;
  const float* row_scale;   // null: no gradient
  const float* loss_scale;  // null: 1
  float* loss;
  int columns;
  float on, off;
};

// Calls f(k, column) for each pack of this thread.
template <bool kResident, class F>
__device__ inline void for_xent_packs(int columns, const F& f) {
  if constexpr (kResident) {
#pragma unroll
    for (int k = 0; k < kXentPacks; ++k)
      if (int column = (k * int(blockDim.x) + int(threadIdx.x)) * kXentPack; column < columns)
        f(k, column);
  } else {
    for (int column = int(threadIdx.x) * kXentPack; column < columns;
         column += int(blockDim.x) * kXentPack)
      f(0, column);
  }
}

// Computes a row per block. kResident keeps the row in registers, and requires kAligned.
template <bool kAligned, bool kResident, class T>
__global__ void __launch_bounds__(kXentMostThreads) xent_rows(XentRows<T> a) {
  __shared__ BlockShared<float> shared;
  const int n = a.columns, row = int(blockIdx.x);
  float* x = a.logits + int64_t(row) * n;
  const int label = a.labels[row];
  const bool inside = label >= 0 && label < n;
  const float on_logit = inside ? x[label] : 0;  // read before any thread writes

  Floats<kXentPack> kept[kResident ? kXentPacks : 1];
  auto read = [&](int column) { return load<kAligned, kXentPack>(x + column, n - column); };
  if constexpr (kResident)
    for_xent_packs<true>(n, [&](int k, int column) { kept[k] = read(column); });
  auto at = [&](int k, int column) {
    if constexpr (kResident)
      return kept[k];
    else
      return read(column);
  };
  auto valid = [&](int column, int i) { return kAligned || column + i < n; };

  float top = -INFINITY;  // the maximum skips NaN, whose exp makes the sum NaN anyway
  for_xent_packs<kResident>(n, [&](int k, int column) {
    const Floats<kXentPack> v = at(k, column);
#pragma unroll
    for (int i = 0; i < kXentPack; ++i)
      if (valid(column, i)) top = fmaxf(top, v[i]);
  });
  top = block_max(top, shared);

  // The exponentials replace the logits in registers.
  float e_sum = 0, d_sum = 0;
  for_xent_packs<kResident>(n, [&](int k, int column) {
    Floats<kXentPack> v = at(k, column);
#pragma unroll
    for (int i = 0; i < kXentPack; ++i) {
      if (!valid(column, i)) continue;
      const float d = v[i] - top, e = expf(d);
      e_sum += e;
      d_sum += d;
      if (kResident) kept[k][i] = e;
    }
  });
  const double sum = double(block_sum(e_sum, shared));
  const double shifted_sum = a.off != 0 ? double(block_sum(d_sum, shared)) : 0;

  const double lift = inside ? double(a.on) - double(a.off) : 0;
  if (threadIdx.x == 0) {
    const double log_sum = log(sum);
    double loss = a.off != 0 ? double(a.off) * (double(n) * log_sum - shifted_sum) : 0;
    if (inside) loss += lift * (log_sum - (double(on_logit) - double(top)));
    a.loss[row] = float(loss);
  }
  if (!a.row_scale) return;
  const float scale = a.row_scale[row] * (a.loss_scale ? *a.loss_scale : 1);
  const float factor = float(double(scale) * (double(a.off) * double(n) + lift) / sum),
              off = -scale * a.off;
  const float at_label = inside ? scale * (a.on - a.off) : 0;
  for_xent_packs<kResident>(n, [&](int k, int column) {
    Floats<kXentPack> v = at(k, column);
#pragma unroll
    for (int i = 0; i < kXentPack; ++i) {
      if (!kResident) v[i] = expf(v[i] - top);
      v[i] = fmaf(v[i], factor, off);
      if (column + i == label) v[i] -= at_label;
    }
    store<kAligned>(a.gradient + int64_t(row) * n + column, v, n - column);
  });
}

template <class T>
void run_rows(const SoftmaxXent& a, const View& gradient, Queue& queue) {
  const float on = 1 - a.smoothing, off = a.smoothing > 0 ? (1 - on) / float(a.columns - 1) : 0;
  CHECK(a.columns <= INT32_MAX, "{}: {} columns exceed 2^31 - 1", name_of(a.op), a.columns);
  XentRows<T> rows{a.logits.f32(),
                   static_cast<T*>(gradient.data),
                   a.labels.i32(),
                   a.gradient ? a.row_scale.f32() : nullptr,
                   a.loss_scale.none() ? nullptr : a.loss_scale.f32(),
                   a.loss.f32(),
                   int(a.columns),
                   on,
                   off};
  const int64_t threads = base::round_up(base::ceil_div(a.columns, kXentColumns), kWarp);
  const bool aligned = packs_fit(kXentPack, a.columns, {a.logits, gradient});
  auto start = [&](auto* kernel) {
    const unsigned block = unsigned(std::min<int64_t>(threads, kXentMostThreads));
    launch(kernel, blocks_for(a.rows, 1), dim3(block), 0, queue, rows);
  };
  if (!aligned)
    start(xent_rows<false, false, T>);
  else if (threads > kXentMostThreads)
    start(xent_rows<true, false, T>);
  else
    start(xent_rows<true, true, T>);
}

}  // namespace

void run_cuda(const SoftmaxXent& a, Queue& queue) {
  const View& gradient = a.rounded.none() ? a.logits : a.rounded;
  with_activation(gradient.type,
                  [&](auto element) { run_rows<decltype(element)>(a, gradient, queue); });
}

}  // namespace kernels
