// SPDX-License-Identifier: Apache-2.0
// Loops over rows and elements: GELU, conversions, softmax cross-entropy, layer norm, column sums
// and dropout. vector_math.hpp explains how this file is compiled.
#pragma once

#include "kernels/cpu/scalar_log.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

// ---- GELU: 0.5 x (1 + tanh u) = x sigmoid(2u) = x / (1 + exp(-2u))
// with u = sqrt(2/pi) (x + 0.044715 x^3)
constexpr float kMinus2U1 = -1.5957691216057308f;  // -2 sqrt(2/pi)
constexpr float kMinus2U3 = -1.5957691216057308f * 0.044715f;

KERNELS_INLINE V gelu_power(V x) {
  return exp_normal(x * fma(broadcast(kMinus2U3), x * x, broadcast(kMinus2U1)));
}

// Below this x, GELU and its derivative are set to 0. They would be less than 1e-36, and products
// with gradients would be denormal, which is slow on some CPUs. gelu_power is bounded, so no
// quotient becomes 0 by itself.
constexpr float kGeluIsZero = -10;

KERNELS_INLINE V gelu(V x) {
  return where_not_less(x, broadcast(kGeluIsZero), x / (broadcast(1.0f) + gelu_power(x)));
}

KERNELS_INLINE V gelu_gradient(V x) {
  V power = gelu_power(x), s = broadcast(1.0f) / (broadcast(1.0f) + power);
  // s (1 - s) is computed as s (s exp(-2u)), because 1 - s has no digits left if s is near 1.
  V slope = s * (s * power);
  V near = min(broadcast(32.0f), x);  // avoids 0 * infinity: far out the slope is about 0
  V minus_2du = fma(broadcast(3 * kMinus2U3), near * near, broadcast(kMinus2U1));
  return where_not_less(x, broadcast(kGeluIsZero), less_product(s, near * minus_2du, slope));
}

template <class T>
void gelu_forward(T* y, const T* x, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, gelu(load(x + i)));
  if (i < count) store_part(y + i, gelu(load_part(x + i, count - i)), count - i);
}

template <class T>
void gelu_backward(T* dx, const T* dy, const T* x, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(dx + i, load(dy + i) * gelu_gradient(load(x + i)));
  int64_t n = count - i;
  if (n > 0) store_part(dx + i, load_part(dy + i, n) * gelu_gradient(load_part(x + i, n)), n);
}

void exp_of(float* y, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    int64_t n = count - i < kLanes ? count - i : kLanes;
    store_part(y + i, exp_normal(load_part(x + i, n)), n);
  }
}

// ---- bfloat16
template <class To, class From>
void convert(To* y, const From* x, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(x + i));
  if (i < count) store_part(y + i, load_part(x + i, count - i), count - i);
}

// ---- softmax cross-entropy of one row, in three sweeps; the last two find the row in cache

// Elements that are summed in float; the results are added in double.
constexpr int64_t kSumBlock = 64 * kLanes;

// Ignores NaN, whose exp makes the sum NaN anyway.
KERNELS_INLINE float largest_in(const float* x, int64_t n) {
  V m = broadcast(-__builtin_inff()), m1 = m, m2 = m, m3 = m;
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    m = max(load(x + j), m);
    m1 = max(load(x + j + kLanes), m1);
    m2 = max(load(x + j + 2 * kLanes), m2);
    m3 = max(load(x + j + 3 * kLanes), m3);
  }
  for (; j + kLanes <= n; j += kLanes) m = max(load(x + j), m);
  if (j < n) m = max(keep_first(load_part(x + j, n - j), n - j, m), m);
  return largest_of(max(max(m, m1), max(m2, m3)));
}

template <Log kLog>
float softmax_xent_row(const SoftmaxRow& row) {
  float* x = row.logits;
  int64_t n = row.columns;
  float top = largest_in(x, n);
  V largest = broadcast(top);
  bool inside = row.label >= 0 && row.label < n;
  float on_logit = inside ? x[row.label] : 0;

  // Sums of exp(x - largest) and, if the target needs it, of x - largest. Memory delivers the next
  // row meanwhile.
  double sum = 0, shifted_sum = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
    V e_sum = zero(), d_sum = zero();
    int64_t j = begin;
    for (; j + kLanes <= end; j += kLanes) {
      V d = load(x + j) - largest, e = exp_below(d);
      if (row.next) __builtin_prefetch(row.next + j, 0, 2);
      e_sum = e_sum + e;
      if (row.off != 0) d_sum = d_sum + d;
      if (row.gradient) store(x + j, e);
    }
    if (j < end) {
      int64_t part = end - j;
      V d = keep_first(load_part(x + j, part) - largest, part, zero()), e = exp_below(d);
      e_sum = e_sum + keep_first(e, part, zero());
      if (row.off != 0) d_sum = d_sum + d;
      if (row.gradient) store_part(x + j, e, part);
    }
    sum += double(sum_of(e_sum));
    shifted_sum += double(sum_of(d_sum));
  }

  double log_sum = log_of<kLog>(sum);
  double loss = 0, q_sum = double(row.off) * double(n);
  if (row.off != 0) loss = double(row.off) * __builtin_fma(double(n), log_sum, -shifted_sum);
  if (inside) {
    double lift = double(row.on) - double(row.off);
    loss = __builtin_fma(lift, log_sum - (double(on_logit) - double(top)), loss);
    q_sum += lift;
  }

  if (row.gradient) {
    V factor = broadcast(float(double(row.scale) * q_sum / sum)),
      off = broadcast(-row.scale * row.off);
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes) store(x + j, fma(load(x + j), factor, off));
    if (j < n) store_part(x + j, fma(load_part(x + j, n - j), factor, off), n - j);
    if (inside) {
      float& on = x[row.label];
      on = __builtin_fmaf(-row.scale, row.on - row.off, on);
    }
  }
  return float(loss);
}

// ---- layer norm
template <class T>
void layer_norm_forward(const LayerNormRows<T>& a) {
  int64_t n = a.columns, whole = n / kLanes * kLanes, part = n - whole;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * n;
    T* y = a.y + r * n;
    V sum = zero();
    for (int64_t j = 0; j < whole; j += kLanes) sum = sum + load(x + j);
    if (part) sum = sum + load_part(x + whole, part);
    float mean = sum_of(sum) / float(n);
    V m = broadcast(mean), squares = zero();
    for (int64_t j = 0; j < whole; j += kLanes) {
      V d = load(x + j) - m;
      squares = fma(d, d, squares);
    }
    if (part) {
      V d = keep_first(load_part(x + whole, part) - m, part, zero());
      squares = fma(d, d, squares);
    }
    float rstd = 1 / __builtin_sqrtf(sum_of(squares) / float(n) + a.eps);
    a.mean[r] = mean;
    a.rstd[r] = rstd;
    V f = broadcast(rstd);
    for (int64_t j = 0; j < whole; j += kLanes) {
      V z = (load(x + j) - m) * (f * load(a.scale + j));
      store(y + j, a.bias ? z + load(a.bias + j) : z);
    }
    if (part) {
      V z = (load_part(x + whole, part) - m) * (f * load_part(a.scale + whole, part));
      store_part(y + whole, a.bias ? z + load_part(a.bias + whole, part) : z, part);
    }
  }
}

KERNELS_INLINE void add_to(float* p, V a) { store(p, load(p) + a); }
KERNELS_INLINE void add_part_to(float* p, V a, int64_t n) { store_part(p, load_part(p, n) + a, n); }
KERNELS_INLINE void add_product_to(float* p, V a, V b) { store(p, fma(a, b, load(p))); }
KERNELS_INLINE void add_product_part_to(float* p, V a, V b, int64_t n) {
  store_part(p, fma(a, b, load_part(p, n)), n);
}

// With z = (x - mean) rstd and g = dy scale:
//   dx = rstd (g - mean(g) - z mean(g z)), dscale = sum of dy z, dbias = sum of dy
void layer_norm_backward(const LayerNormGradientRows& a) {
  int64_t n = a.columns, whole = n / kLanes * kLanes, part = n - whole;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float *x = a.x + r * n, *dy = a.dy + r * n;
    V m = broadcast(a.mean[r]), f = broadcast(a.rstd[r]);
    V g_mean = zero(), gz_mean = zero();
    if (a.dx) {
      V g_sum = zero(), gz_sum = zero();
      for (int64_t j = 0; j < whole; j += kLanes) {
        V g = load(dy + j) * load(a.scale + j);
        g_sum = g_sum + g;
        gz_sum = fma(g, (load(x + j) - m) * f, gz_sum);
      }
      if (part) {
        V g = load_part(dy + whole, part) * load_part(a.scale + whole, part);
        g_sum = g_sum + g;
        gz_sum = fma(g, keep_first((load_part(x + whole, part) - m) * f, part, zero()), gz_sum);
      }
      g_mean = broadcast(sum_of(g_sum) / float(n));
      gz_mean = broadcast(sum_of(gz_sum) / float(n));
    }
    for (int64_t j = 0; j < whole; j += kLanes) {
      V d = load(dy + j), z = (load(x + j) - m) * f;
      if (a.dscale) add_product_to(a.dscale + j, d, z);
      if (a.dbias) add_to(a.dbias + j, d);
      if (!a.dx) continue;
      V dx = f * less_product(fma(d, load(a.scale + j), -g_mean), z, gz_mean);
      float* out = a.dx + r * n + j;
      store(out, a.add_dx ? load(out) + dx : dx);
    }
    if (part) {
      V d = load_part(dy + whole, part), z = (load_part(x + whole, part) - m) * f;
      if (a.dscale) add_product_part_to(a.dscale + whole, d, z, part);
      if (a.dbias) add_part_to(a.dbias + whole, d, part);
      if (!a.dx) continue;
      V dx = f * less_product(fma(d, load_part(a.scale + whole, part), -g_mean), z, gz_mean);
      float* out = a.dx + r * n + whole;
      store_part(out, a.add_dx ? load_part(out, part) + dx : dx, part);
    }
  }
}

// ---- column sums; they stay in registers for four rows, and are still added row after row
template <class T>
void add_rows(float* sums, const T* x, int64_t rows, int64_t n) {
  int64_t r = 0, whole = n / kLanes * kLanes, part = n - whole;
  for (; r + 4 <= rows; r += 4, x += 4 * n) {
    for (int64_t j = 0; j < whole; j += kLanes)
      store(sums + j, load(sums + j) + load(x + j) + load(x + n + j) + load(x + 2 * n + j) +
                          load(x + 3 * n + j));
    for (int64_t i = 0; part && i < 4; ++i)
      add_part_to(sums + whole, load_part(x + i * n + whole, part), part);
  }
  for (; r < rows; ++r, x += n) {
    for (int64_t j = 0; j < whole; j += kLanes) add_to(sums + j, load(x + j));
    if (part) add_part_to(sums + whole, load_part(x + whole, part), part);
  }
}

// ---- dropout
KERNELS_INLINE Draws draws_of(uint64_t key, float rate, float keep) {
  return {uint32_t(key), uint32_t(key >> 32), rate, keep};
}

// out[count] = the factors of draws first, first + 1, ... `out` has room for 4 * kLanes more.
KERNELS_INLINE void factors_from(float* out, uint64_t first, int64_t count, const Draws& draws) {
  int64_t skip = int64_t(first % 4);
  V f[4];
  for (int64_t i = -skip; i < count; i += 4 * kLanes) {
    draw_factors(f, uint64_t(int64_t(first) + i) / 4, draws);
    if (i < 0) {
      alignas(64) float block[4 * kLanes];
      for (int v = 0; v < 4; ++v) store(block + v * kLanes, f[v]);
      for (int64_t t = skip; t < 4 * kLanes; ++t) out[t - skip] = block[t];
    } else {
      for (int v = 0; v < 4; ++v) store(out + i + v * kLanes, f[v]);
    }
  }
}

template <class T>
void dropout(const DropoutRange<T>& a) {
  constexpr int64_t kChunk = 256;
  alignas(64) float factors[kChunk + 4 * kLanes];
  Draws draws = draws_of(a.key, a.rate, 1);
  V divisor = broadcast(1 - a.rate);
  for (int64_t begin = 0; begin < a.count; begin += kChunk) {
    int64_t n = a.count - begin < kChunk ? a.count - begin : kChunk;
    factors_from(factors, a.first + uint64_t(begin), n, draws);
    const T* x = a.x + begin;
    T* y = a.y + begin;
    int64_t j = 0;
    // A dropped element becomes 0, so it is selected: NaN * 0 would stay NaN.
    for (; j + kLanes <= n; j += kLanes)
      store(y + j, where_not_less(load(factors + j), broadcast(1), load(x + j) / divisor));
    if (j < n)
      store_part(y + j,
                 where_not_less(load(factors + j), broadcast(1), load_part(x + j, n - j) / divisor),
                 n - j);
  }
}

}  // namespace
}  // namespace kernels
