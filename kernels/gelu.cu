// CUDA form of GELU; see vector_rows.hpp for the formulas, which are the same.
#include "kernels/floats.cuh"
#include "kernels/gelu.hpp"

namespace kernels {
namespace {

constexpr float kGeluMinus2U1 = -1.5957691216057308f;  // -2 sqrt(2/pi)
constexpr float kGeluMinus2U3 = kGeluMinus2U1 * 0.044715f;

__device__ inline float gelu_power(float x) { return expf(x * fmaf(kGeluMinus2U3, x * x, kGeluMinus2U1)); }

__device__ inline float gelu_of(float x) { return x / (1.0f + gelu_power(x)); }

__device__ inline float gelu_gradient_of(float x) {
  const float power = gelu_power(x), s = 1.0f / (1.0f + power);
  // Far out s is exactly 0 or 1; the bounds keep its derivative 0 there instead of 0 * infinity. NaN stays NaN through
  // s.
  const float slope = s * s * fminf(1e30f, power), near = fmaxf(-32.0f, fminf(32.0f, x));
  const float minus_2du = fmaf(3 * kGeluMinus2U3, near * near, kGeluMinus2U1);
  return s - near * minus_2du * slope;
}

template <class T>
struct GeluForwardBody {
  T* y;
  const T* x;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v = load<true, N>(x + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = gelu_of(v[k]);
    store<true>(y + i, v, N);
  }
};

template <class T>
struct GeluBackwardBody {
  T* dx;
  const T *dy, *x;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v = load<true, N>(x + i, N), d = load<true, N>(dy + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = d[k] * gelu_gradient_of(v[k]);
    store<true>(dx + i, v, N);
  }
};

template <class T>
void forward(const GeluForward& a, Queue& queue) {
  for_each_element<int(16 / sizeof(T))>(GeluForwardBody<T>{static_cast<T*>(a.y.data), static_cast<const T*>(a.x.data)},
                                        a.x.count, queue, {a.y.data, a.x.data});
}

template <class T>
void backward(const GeluBackward& a, Queue& queue) {
  GeluBackwardBody<T> body{static_cast<T*>(a.dx.data), static_cast<const T*>(a.dy.data),
                           static_cast<const T*>(a.x.data)};
  for_each_element<int(16 / sizeof(T))>(body, a.x.count, queue, {a.dx.data, a.dy.data, a.x.data});
}

}  // namespace

void run_cuda(const GeluForward& a, Queue& queue) {
  if (a.x.type == DType::bf16)
    forward<uint16_t>(a, queue);
  else
    forward<float>(a, queue);
}

void run_cuda(const GeluBackward& a, Queue& queue) {
  if (a.x.type == DType::bf16)
    backward<uint16_t>(a, queue);
  else
    backward<float>(a, queue);
}

}  // namespace kernels
