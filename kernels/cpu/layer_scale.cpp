// SPDX-License-Identifier: Apache-2.0
// CPU implementation of layer scale with stochastic depth.
#include "kernels/layer_scale.hpp"

#include <cstring>

#include "base/fused.hpp"
#include "base/narrow.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/row_blocks.hpp"

namespace kernels {
namespace {

// Calls f(element) with an element of the type that represents activations of `type`.
template <class F>
void with_branch(DType type, const F& f) {
  if (type == DType::bf16) return f(loops::Bf16{});
  CHECK(type == DType::f32, "only GPUs have activations of {}", device::name_of(type));
  f(float{});
}

template <class Args>
float factor_of(const Args& a, int64_t row) {
  return a.factor.none() ? 1.0f : a.factor.f32()[row / a.rows];
}

// dx of rows [begin, end), and their part of the sums, if there is one.
template <class T>
void backward_rows(const LayerScaleBackward& a, int64_t begin, int64_t end, float* sums) {
  const int64_t n = a.columns;
  const float* scale = a.scale.f32();
  for (int64_t r = begin; r < end; ++r) {
    const float factor = factor_of(a, r);
    T* dx = static_cast<T*>(a.dx.data) + r * n;
    const T* x = static_cast<const T*>(a.x.data) + r * n;
    const float* dy = a.dy.f32() + r * n;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) dx[j] = loops::store_as<T>(dy[j] * factor * scale[j]);
    if (!sums) continue;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j)
      sums[j] = base::fused(dy[j] * factor, loops::to_float(x[j]), sums[j]);
  }
}

}  // namespace

void run_cpu(const LayerScaleForward& a, Queue& queue) {
  with_branch(a.x.type, [&](auto element) {
    using T = decltype(element);
    const int64_t n = a.columns;
    const float* scale = a.scale.f32();
    for_ranges(queue, a.images * a.rows, a.x.count, 1, [&](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        const float factor = factor_of(a, r);
        float* y = a.y.f32() + r * n;
        const float* residual = a.residual.f32() + r * n;
        const T* x = static_cast<const T*>(a.x.data) + r * n;
#pragma omp simd
        for (int64_t j = 0; j < n; ++j)
          y[j] = base::fused(loops::to_float(x[j]) * scale[j], factor, residual[j]);
      }
    });
  });
}

void run_cpu(const LayerScaleBackward& a, Queue& queue) {
  const int64_t n = a.columns, stride = base::round_up(n, 16);
  const RowBlocks blocks(a.images * a.rows);
  float* partial = nullptr;  // [block][stride]
  if (!a.dscale.none())
    partial = static_cast<float*>(queue.scratch(size_t(blocks.count() * stride) * sizeof(float)));
  with_branch(a.x.type, [&](auto element) {
    for_ranges(queue, blocks.count(), a.x.count, 1, [&](int64_t b, int64_t end) {
      for (; b < end; ++b) {
        float* sums = partial ? partial + b * stride : nullptr;
        if (sums) std::memset(sums, 0, size_t(stride) * sizeof(float));
        backward_rows<decltype(element)>(a, blocks.begin(b), blocks.end(b), sums);
      }
    });
  });
  if (!partial) return;
  float* out = a.dscale.f32();
  for_ranges(queue, n, n * blocks.count(), 64, [&](int64_t begin, int64_t end) {
    if (a.write == Write::overwrite)
      std::memset(out + begin, 0, size_t(end - begin) * sizeof(float));
    for (int64_t b = 0; b < blocks.count(); ++b) {
      const float* sums = partial + b * stride;
      for (int64_t j = begin; j < end; ++j) out[j] += sums[j];
    }
  });
}

}  // namespace kernels
