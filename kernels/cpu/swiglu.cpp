// SPDX-License-Identifier: Apache-2.0
// CPU implementation of SwiGLU's hidden layer.
#include "kernels/swiglu.hpp"

#include <algorithm>

#include "base/fused.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

constexpr int64_t kGateBlock = 256;  // elements whose exponentials are computed together

// Calls f(element) with an element of the type that represents activations of `type`.
template <class F>
void with_gate(DType type, const F& f) {
  if (type == DType::bf16) return f(loops::Bf16{});
  CHECK(type == DType::f32, "only GPUs have activations of {}", device::name_of(type));
  f(float{});
}

// Calls f(begin, end, powers) for blocks of elements, with powers[i] = exp(-gate[begin + i]).
template <class T, class F>
void for_blocks(Queue& queue, const T* gate, int64_t count, const F& f) {
  const auto exp_of = vector_table().exp_of;
  for_ranges(queue, count, count, 64, [&](int64_t begin, int64_t end) {
    float powers[kGateBlock];
    for (; begin < end; begin += kGateBlock) {
      const int64_t n = std::min(kGateBlock, end - begin);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) powers[i] = -loops::to_float(gate[begin + i]);
      exp_of(powers, powers, n);
      f(begin, n, powers);
    }
  });
}

}  // namespace

void run_cpu(const SwigluForward& a, Queue& queue) {
  with_gate(a.gate.type, [&](auto element) {
    using T = decltype(element);
    T* all = static_cast<T*>(a.y.data);
    const T *gates = static_cast<const T*>(a.gate.data),
            *values = static_cast<const T*>(a.value.data);
    for_blocks(queue, gates, a.gate.count, [&](int64_t begin, int64_t n, const float* powers) {
      T* y = all + begin;
      const T *gate = gates + begin, *value = values + begin;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i)
        y[i] = loops::store_as<T>(loops::to_float(gate[i]) / (1 + powers[i]) *
                                  loops::to_float(value[i]));
    });
  });
}

void run_cpu(const SwigluBackward& a, Queue& queue) {
  with_gate(a.gate.type, [&](auto element) {
    using T = decltype(element);
    T *dgates = static_cast<T*>(a.dgate.data), *dvalues = static_cast<T*>(a.dvalue.data);
    const T *gates = static_cast<const T*>(a.gate.data),
            *values = static_cast<const T*>(a.value.data), *dys = static_cast<const T*>(a.dy.data);
    for_blocks(queue, gates, a.gate.count, [&](int64_t begin, int64_t n, const float* powers) {
      T *dgate = dgates + begin, *dvalue = dvalues + begin;
      const T *gate = gates + begin, *value = values + begin, *dy = dys + begin;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const float g = loops::to_float(gate[i]), v = loops::to_float(value[i]),
                    d = loops::to_float(dy[i]), s = 1 / (1 + powers[i]);
        // 1 - s is computed as s exp(-g), because it has no digits left if s is near 1.
        dgate[i] = loops::store_as<T>(d * v * base::fused(g * s, s * powers[i], s));
        dvalue[i] = loops::store_as<T>(d * (g * s));
      }
    });
  });
}

}  // namespace kernels
