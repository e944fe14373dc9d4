// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the moving average.
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/many.cuh"
#include "kernels/ema_update.hpp"

namespace kernels {
namespace {

constexpr int kEmaThreads = 256, kEmaPack = 4;

struct EmaItem {
  float* average;
  const float *values, *decided;  // decided may be null
  float keep;
  int64_t count;
};

template <bool kAligned>
__global__ void __launch_bounds__(kEmaThreads)
    ema_blocks(const ManyItems<EmaItem> __grid_constant__ all) {
  const Share share = share_of_block(all);
  const EmaItem& a = all.items[share.item];
  if (a.decided && a.decided[2] == 0) return;
  const float add = 1.0f - a.keep;
  auto follow = [&](float y, float x) { return a.keep == 0 ? x : fmaf(add, x - y, y); };
  int64_t i = (int64_t(share.block) * kEmaThreads + threadIdx.x) * kEmaPack;
  if (kAligned && i + kEmaPack <= a.count) {
    Floats<kEmaPack> y = load<true, kEmaPack>(a.average + i, kEmaPack);
    const Floats<kEmaPack> x = load<true, kEmaPack>(a.values + i, kEmaPack);
#pragma unroll
    for (int k = 0; k < kEmaPack; ++k) y[k] = follow(y[k], x[k]);
    store<true>(a.average + i, y, kEmaPack);
    return;
  }
  for (const int64_t end = i + kEmaPack; i < end && i < a.count; ++i)
    a.average[i] = follow(a.average[i], a.values[i]);
}

}  // namespace

void run_cuda(std::span<const EmaUpdate> all, Queue& queue) {
  ManyLaunch aligned(ema_blocks<true>, kEmaThreads, queue),
      other(ema_blocks<false>, kEmaThreads, queue);
  for (const EmaUpdate& a : all)
    (packs_fit(kEmaPack, 0, {a.average, a.values}) ? aligned : other)
        .add({a.average.f32(), a.values.f32(), a.decided.none() ? nullptr : a.decided.f32(), a.keep,
              a.average.count},
             base::ceil_div(a.average.count, kEmaThreads * kEmaPack));
  aligned.start();
  other.start();
}

}  // namespace kernels
