// SPDX-License-Identifier: Apache-2.0
// Loops that generate text token by token: attention of one query over a cache, and products of few
// rows. vector_math.hpp explains how this file is compiled.
#pragma once

#include "kernels/cpu/attention_head.hpp"
#include "kernels/cpu/vector_rows.hpp"

namespace kernels {
namespace {

// ---- attention of one query

template <class T>
KERNELS_INLINE int64_t offset_of_key(const DecodeHead<T>& h, int64_t j) {
  return (h.index ? h.index[j] : h.first + j) * h.stride;
}

template <class T>
KERNELS_INLINE float score_of_key(const float* q, const T* k, int64_t n) {
  V sum = zero();
  int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) sum = fma(load(q + d), load(k + d), sum);
  if (d < n) sum = fma(load_part(q + d, n - d), load_part(k + d, n - d), sum);
  return sum_of(sum);
}

// Mixes kVectors vectors of the values, from column `at` on. `part`: elements of the last vector.
template <int kVectors, class T>
KERNELS_INLINE void mix_values(const DecodeHead<T>& h, const float* weights, float factor,
                               int64_t at, int64_t part) {
  V sum[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) sum[i] = zero();
  for (int64_t j = 0; j < h.keys; ++j) {
    const T* v = h.v + offset_of_key(h, j) + at;
    const V w = broadcast(weights[j]);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
      sum[i] = fma(w, part < kLanes ? load_part(v, part) : load(v + i * kLanes), sum[i]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    T* o = h.o + at + i * kLanes;
    if (part < kLanes)
      store_part(o, sum[i] * broadcast(factor), part);
    else
      store(o, sum[i] * broadcast(factor));
  }
}

// scratch: room for keys and head_dim, both in whole vectors of 16.
template <class T>
void decode_attention(const DecodeHead<T>& h, float* scratch) {
  float *q = scratch, *weights = scratch + (h.head_dim + 15) / 16 * 16;
  convert(q, h.q, h.head_dim);
  for (int64_t j = 0; j < h.keys; ++j)
    weights[j] = score_of_key(q, h.k + offset_of_key(h, j), h.head_dim);
  float largest;
  const float sum = softmax_row(weights, h.keys, 1 / __builtin_sqrtf(float(h.head_dim)), largest);
  if (sizeof(T) == sizeof(uint16_t))
    for (int64_t j = 0; j < h.keys; j += kLanes)
      store(weights + j, value_of_bits(bf16_bits(load(weights + j))));
  int64_t d = 0;
  for (; d + 4 * kLanes <= h.head_dim; d += 4 * kLanes)
    mix_values<4>(h, weights, 1 / sum, d, kLanes);
  for (; d < h.head_dim; d += kLanes)
    mix_values<1>(h, weights, 1 / sum, d, smaller(kLanes, h.head_dim - d));
}

// ---- products of few rows

// The elements of a that are multiplied in one sweep over the sums: as many vectors of b stay in
// registers.
constexpr int kDepth = kLanes == 16 ? 16 : 8;

// Adds a[r][0..kSteps) . b[0..kSteps)[columns] to the sums of every row.
template <int kSteps, class T>
KERNELS_INLINE void add_steps(const RowProductPart<T>& p, const float* a, const T* b) {
  int64_t j = 0;
  for (; j + kLanes <= p.columns; j += kLanes) {
    V w[kSteps];
#pragma GCC unroll 16
    for (int i = 0; i < kSteps; ++i) {
      w[i] = load(b + i * p.n + j);
      // Only addresses within b and shortly behind it are prefetched, which is harmless.
      _mm_prefetch(reinterpret_cast<const char*>(b + (i + kSteps) * p.n + j), _MM_HINT_T0);
    }
    for (int64_t r = 0; r < p.rows; ++r) {
      float* to = p.sums + r * p.stride + j;
      V sum = load(to);
#pragma GCC unroll 16
      for (int i = 0; i < kSteps; ++i) sum = fma(broadcast(a[r * p.k + i]), w[i], sum);
      store(to, sum);
    }
  }
  if (j == p.columns) return;
  const int64_t left = p.columns - j;
  for (int i = 0; i < kSteps; ++i) {
    const V w = load_part(b + i * p.n + j, left);
    for (int64_t r = 0; r < p.rows; ++r) {
      float* to = p.sums + r * p.stride + j;
      store_part(to, fma(broadcast(a[r * p.k + i]), w, load_part(to, left)), left);
    }
  }
}

template <class T>
void row_product(const RowProductPart<T>& p) {
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t j = 0; j < p.columns; ++j) p.sums[r * p.stride + j] = 0;
  int64_t i = 0;
  for (; i + kDepth <= p.k; i += kDepth) add_steps<kDepth>(p, p.a + i, p.b + i * p.n);
  for (; i < p.k; ++i) add_steps<1>(p, p.a + i, p.b + i * p.n);
}

}  // namespace
}  // namespace kernels
