// SPDX-License-Identifier: Apache-2.0
// CPU implementation of activations.
#include "kernels/activation.hpp"

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

float gelu(float x) { return 0.5f * x * (1 + base::math::erf(x * 0.70710678f)); }
float gelu_slope(float x) {
  return base::fused(0.5f, 1 + base::math::erf(x * 0.70710678f),
                     x * 0.39894228f * base::math::exp(-0.5f * x * x));
}
float sigmoid(float x) { return 1 / (1 + base::math::exp(-x)); }
float quick(float x) { return x * sigmoid(1.702f * x); }
float quick_slope(float x) {
  const float s = sigmoid(1.702f * x);
  return base::fused(1.702f * x * s, 1 - s, s);
}

// Calls f(element) with an element of the type that represents activations of `type`.
template <class F>
void with_element(DType type, const F& f) {
  if (type == DType::bf16) return f(loops::Bf16{});
  CHECK(type == DType::f32, "only GPUs have activations of {}", device::name_of(type));
  f(float{});
}

}  // namespace

void run_cpu(const ActivationForward& a, Queue& queue) {
  with_element(a.x.type, [&](auto element) {
    using T = decltype(element);
    T* y = static_cast<T*>(a.y.data);
    const T* x = static_cast<const T*>(a.x.data);
    for_ranges(queue, a.x.count, a.x.count, 64, [&](int64_t begin, int64_t end) {
      if (a.kind == Activation::relu) {
        for (int64_t i = begin; i < end; ++i) {
          const float v = loops::to_float(x[i]);
          y[i] = loops::store_as<T>(v < 0 ? 0 : v);  // NaN stays
        }
      } else if (a.kind == Activation::gelu_quick) {
        for (int64_t i = begin; i < end; ++i)
          y[i] = loops::store_as<T>(quick(loops::to_float(x[i])));
      } else {
        for (int64_t i = begin; i < end; ++i)
          y[i] = loops::store_as<T>(gelu(loops::to_float(x[i])));
      }
    });
  });
}

void run_cpu(const ActivationBackward& a, Queue& queue) {
  with_element(a.x.type, [&](auto element) {
    using T = decltype(element);
    T* dx = static_cast<T*>(a.dx.data);
    const T *x = static_cast<const T*>(a.x.data), *dy = static_cast<const T*>(a.dy.data);
    for_ranges(queue, a.x.count, a.x.count, 64, [&](int64_t begin, int64_t end) {
      if (a.kind == Activation::relu) {
        for (int64_t i = begin; i < end; ++i)
          dx[i] = loops::store_as<T>(loops::to_float(x[i]) > 0 ? loops::to_float(dy[i]) : 0);
      } else if (a.kind == Activation::gelu_quick) {
        for (int64_t i = begin; i < end; ++i)
          dx[i] = loops::store_as<T>(loops::to_float(dy[i]) * quick_slope(loops::to_float(x[i])));
      } else {
        for (int64_t i = begin; i < end; ++i)
          dx[i] = loops::store_as<T>(loops::to_float(dy[i]) * gelu_slope(loops::to_float(x[i])));
      }
    });
  });
}

}  // namespace kernels
