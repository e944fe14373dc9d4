// SPDX-License-Identifier: Apache-2.0
// CPU implementation of activations.
#include "kernels/activation.hpp"

#include <algorithm>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

// Elementary functions take this many numbers at a time.
constexpr int64_t kPiece = 256;

// Formulas of `count` numbers x, at most kPiece. y may be x.

// erf[i] = erf(x[i] / sqrt(2))
void erf_of_scaled(float* erf, const float* x, int64_t count) {
  float scaled[kPiece] = {};
  for (int64_t i = 0; i < count; ++i) scaled[i] = x[i] * 0.70710678f;
  base::math::erf_of(erf, scaled, count);
}
void gelu(float* y, const float* x, int64_t count) {
  float erf[kPiece];
  erf_of_scaled(erf, x, count);
  for (int64_t i = 0; i < count; ++i) y[i] = 0.5f * x[i] * (1 + erf[i]);
}
void gelu_slope(float* y, const float* x, int64_t count) {
  float erf[kPiece], power[kPiece] = {}, exp[kPiece];
  erf_of_scaled(erf, x, count);
  for (int64_t i = 0; i < count; ++i) power[i] = -0.5f * x[i] * x[i];
  base::math::exp_of(exp, power, count);
  for (int64_t i = 0; i < count; ++i)
    y[i] = base::fused(0.5f, 1 + erf[i], x[i] * 0.39894228f * exp[i]);
}

// sigmoid[i] = 1 / (1 + exp(-1.702 x[i]))
void sigmoid_of_scaled(float* sigmoid, const float* x, int64_t count) {
  float power[kPiece] = {};
  for (int64_t i = 0; i < count; ++i) power[i] = -(1.702f * x[i]);
  base::math::exp_of(sigmoid, power, count);
  for (int64_t i = 0; i < count; ++i) sigmoid[i] = 1 / (1 + sigmoid[i]);
}
void quick(float* y, const float* x, int64_t count) {
  float sigmoid[kPiece];
  sigmoid_of_scaled(sigmoid, x, count);
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * sigmoid[i];
}
void quick_slope(float* y, const float* x, int64_t count) {
  float sigmoid[kPiece];
  sigmoid_of_scaled(sigmoid, x, count);
  for (int64_t i = 0; i < count; ++i) {
    const float s = sigmoid[i];
    y[i] = base::fused(1.702f * x[i] * s, 1 - s, s);
  }
}

// Calls f(element) with an element of the type that represents activations of `type`.
template <class F>
void with_element(DType type, const F& f) {
  if (type == DType::bf16) return f(loops::Bf16{});
  CHECK(type == DType::f32, "only GPUs have activations of {}", device::name_of(type));
  f(float{});
}

// Calls use(i, formula(x[i])) for all i, with the threads of the queue.
template <class T, class Use>
void apply(void (*formula)(float*, const float*, int64_t), const View& x, Queue& queue, Use use) {
  const T* from = static_cast<const T*>(x.data);
  for_ranges(queue, x.count, x.count, 64, [&](int64_t begin, int64_t end) {
    float values[kPiece];
    for (int64_t first = begin; first < end; first += kPiece) {
      const int64_t count = std::min(kPiece, end - first);
      for (int64_t i = 0; i < count; ++i) values[i] = loops::to_float(from[first + i]);
      formula(values, values, count);
      for (int64_t i = 0; i < count; ++i) use(first + i, values[i]);
    }
  });
}

}  // namespace

void run_cpu(const ActivationForward& a, Queue& queue) {
  with_element(a.x.type, [&](auto element) {
    using T = decltype(element);
    T* y = static_cast<T*>(a.y.data);
    auto store = [=](int64_t i, float value) { y[i] = loops::store_as<T>(value); };
    if (a.kind != Activation::relu)
      return apply<T>(a.kind == Activation::gelu_quick ? quick : gelu, a.x, queue, store);
    const T* x = static_cast<const T*>(a.x.data);
    for_ranges(queue, a.x.count, a.x.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float v = loops::to_float(x[i]);
        store(i, v < 0 ? 0 : v);  // NaN stays
      }
    });
  });
}

void run_cpu(const ActivationBackward& a, Queue& queue) {
  with_element(a.x.type, [&](auto element) {
    using T = decltype(element);
    T* dx = static_cast<T*>(a.dx.data);
    const T* dy = static_cast<const T*>(a.dy.data);
    if (a.kind != Activation::relu)
      return apply<T>(a.kind == Activation::gelu_quick ? quick_slope : gelu_slope, a.x, queue,
                      [=](int64_t i, float slope) {
                        dx[i] = loops::store_as<T>(loops::to_float(dy[i]) * slope);
                      });
    const T* x = static_cast<const T*>(a.x.data);
    for_ranges(queue, a.x.count, a.x.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        dx[i] = loops::store_as<T>(loops::to_float(x[i]) > 0 ? loops::to_float(dy[i]) : 0);
    });
  });
}

}  // namespace kernels
