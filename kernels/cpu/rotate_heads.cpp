// SPDX-License-Identifier: Apache-2.0
// CPU implementation of rotary positions.
#include "kernels/rotate_heads.hpp"

#include "base/fused.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

template <class T>
void rotate_head(T* x, const float* cosines, const float* sines, float sign, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = loops::to_float(x[i]), b = loops::to_float(x[i + half]), s = sign * sines[i];
    x[i] = loops::store_as<T>(base::fused(a, cosines[i], -(b * s)));
    x[i + half] = loops::store_as<T>(base::fused(b, cosines[i], a * s));
  }
}

template <class T>
void rotate_rows(const RotateHeads& a, T* x, Queue& queue) {
  const int64_t half = a.head_dim / 2, length = a.length();
  const float* table = a.table.f32();
  const float sign = a.backward ? -1.0f : 1.0f;
  for_ranges(queue, a.rows, a.rows * a.heads * a.head_dim, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      const float* cosines = table + r % length * a.head_dim;
      T* row = x + r * a.row();
      for (int64_t h = 0; h < a.heads; ++h)
        rotate_head(row + h * a.head_dim, cosines, cosines + half, sign, half);
    }
  });
}

}  // namespace

void run_cpu(const RotateHeads& a, Queue& queue) {
  if (a.x.type == DType::bf16) return rotate_rows(a, static_cast<loops::Bf16*>(a.x.data), queue);
  CHECK(a.x.type == DType::f32, "only GPUs have activations of {}", device::name_of(a.x.type));
  rotate_rows(a, a.x.f32(), queue);
}

}  // namespace kernels
