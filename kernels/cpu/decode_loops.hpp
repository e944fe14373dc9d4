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

// Fetches elements that the next head or query reads. Memory delivers them while this one is
// computed.
template <class T>
KERNELS_INLINE void fetch_ahead(const DecodeHead<T>& h, const T* at) {
  constexpr int64_t kLine = 64 / int64_t(sizeof(T));
  for (int64_t d = 0; d < h.head_dim; d += kLine) __builtin_prefetch(at + h.ahead + d, 0, 2);
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
  for (int64_t j = 0; j < h.keys; ++j) {
    const int64_t at = offset_of_key(h, j);
    weights[j] = score_of_key(q, h.k + at, h.head_dim);
    if (h.ahead) {
      fetch_ahead(h, h.k + at);
      fetch_ahead(h, h.v + at);
    }
  }
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

// The sums of a tile stay in registers from the first element of a row to the last. With 8 x 3
// vectors of 16 numbers, or 4 x 3 of 8, enough registers are left for b. A vector of 16 in two
// registers leaves enough with 6 x 1, and with 3 vectors of one or two rows.
constexpr int kVectorsAtOnce = 3;
constexpr bool kNarrowTiles = kLanes == 16 && !kManyRegisters;
constexpr int kRowsAtOnce = kManyRegisters ? 8 : kNarrowTiles ? 6 : 4;
constexpr int kFetchedAhead = 8;  // rows of b

// Tells a tile which rows of b to fetch. The tiles of a range of columns share the rows of the next
// range among them, and memory delivers these rows while the tiles multiply.
struct Fetch {
  bool now;             // fetches the tile's own columns too, which may not be in the caches yet
  int64_t turn, turns;  // fetches the rows turn, turn + turns ... of the next columns
};

// Prefetches only addresses within b and shortly after its end, which is harmless.
template <class T>
KERNELS_INLINE void fetch_row(const RowProductPart<T>& p, const T* b) {
  __builtin_prefetch(b + kFetchedAhead * p.n, 0, 3);
}

template <class T>
KERNELS_INLINE void fetch_columns(const T* b) {
  __builtin_prefetch(b, 0, 2);
}

template <int kRows, int kVectors, class T>
KERNELS_INLINE void store_tile(const RowProductPart<T>& p, const V (&sum)[kRows][kVectors],
                               int64_t r, int64_t j, int64_t part) {
#pragma GCC unroll 8
  for (int y = 0; y < kRows; ++y)
#pragma GCC unroll 3
    for (int x = 0; x < kVectors; ++x) {
      float* to = p.sums + (r + y) * p.stride + j + x * kLanes;
      if (part < kLanes)
        store_part(to, sum[y][x], part);
      else
        store(to, sum[y][x]);
    }
}

// Computes the sums of kRows rows from row r on, and kVectors vectors of columns from column j on.
// `part`: columns of the last vector.
template <int kRows, int kVectors, class T>
KERNELS_INLINE void multiply_tile(const RowProductPart<T>& p, int64_t r, int64_t j, int64_t part,
                                  Fetch fetch) {
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int y = 0; y < kRows; ++y)
#pragma GCC unroll 3
    for (int x = 0; x < kVectors; ++x) sum[y][x] = zero();
  const float* a = p.a + r * p.k;
  const T* b = p.b + j;
  for (int64_t i = 0; i < p.k; ++i, b += p.n) {
    const bool ahead = i == fetch.turn;
    if (ahead) fetch.turn += fetch.turns;
    V w[kVectors];
#pragma GCC unroll 3
    for (int x = 0; x < kVectors; ++x) {
      const T* at = b + x * kLanes;
      w[x] = part < kLanes ? load_part(at, part) : load(at);
      if (fetch.now) fetch_row(p, at);
      if (ahead) fetch_columns(at + kVectors * kLanes);
    }
#pragma GCC unroll 8
    for (int y = 0; y < kRows; ++y) {
      const V factor = broadcast(a[y * p.k + i]);
#pragma GCC unroll 3
      for (int x = 0; x < kVectors; ++x) sum[y][x] = fma(factor, w[x], sum[y][x]);
    }
  }
  store_tile(p, sum, r, j, part);
}

#ifdef KERNELS_AVX512_BF16
// Multiplies a tile in bf16. One instruction multiplies and adds elements of two rows of b.
template <int kRows, int kVectors>
KERNELS_INLINE void multiply_tile(const RowProductPart<uint16_t>& p, int64_t r, int64_t j,
                                  int64_t part, Fetch fetch) {
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int y = 0; y < kRows; ++y)
#pragma GCC unroll 3
    for (int x = 0; x < kVectors; ++x) sum[y][x] = zero();
  const uint16_t *a = p.stored + r * p.k, *b = p.b + j;
  auto bits = [part](const uint16_t* at) {
    return part < kLanes ? load_bits_part(at, part) : load_bits(at);
  };
  for (int64_t i = 0; i < p.k; i += 2, b += 2 * p.n) {
    const bool pair = i + 1 < p.k, ahead = i / 2 == fetch.turn;
    if (ahead) fetch.turn += fetch.turns;
    Words w[kVectors];
#pragma GCC unroll 3
    for (int x = 0; x < kVectors; ++x) {
      const uint16_t* at = b + x * kLanes;
      w[x] = pairs_of(bits(at), pair ? bits(at + p.n) : Words{});
      if (fetch.now) {
        fetch_row(p, at);
        fetch_row(p, at + p.n);
      }
      if (ahead) {
        fetch_columns(at + kVectors * kLanes);
        fetch_columns(at + kVectors * kLanes + p.n);
      }
    }
#pragma GCC unroll 8
    for (int y = 0; y < kRows; ++y) {
      uint32_t both = a[y * p.k + i];
      if (pair) __builtin_memcpy(&both, a + y * p.k + i, sizeof(both));
      const Words factor = words(both);
#pragma GCC unroll 3
      for (int x = 0; x < kVectors; ++x) sum[y][x] = add_product(sum[y][x], factor, w[x]);
    }
  }
  store_tile(p, sum, r, j, part);
}
#endif

template <int kVectors, class T>
KERNELS_INLINE void multiply_columns(const RowProductPart<T>& p, int64_t j, int64_t part) {
  const int64_t turns = p.rows / kRowsAtOnce;
  int64_t r = 0;
  constexpr int kWidth = kNarrowTiles ? 1 : kVectors;
  for (; r + kRowsAtOnce <= p.rows; r += kRowsAtOnce)
    for (int v = 0; v < kVectors; v += kWidth)
      multiply_tile<kRowsAtOnce, kWidth>(p, r, j + v * kLanes, part,
                                         {r == 0, r / kRowsAtOnce, turns});
  for (; r + 2 <= p.rows; r += 2) multiply_tile<2, kVectors>(p, r, j, part, {r == 0, p.k, 1});
  if (r < p.rows) multiply_tile<1, kVectors>(p, r, j, part, {r == 0, p.k, 1});
}

template <class T>
void row_product(const RowProductPart<T>& p) {
  constexpr int64_t kColumnsAtOnce = kVectorsAtOnce * kLanes;
  int64_t j = 0;
  for (; j + kColumnsAtOnce <= p.columns; j += kColumnsAtOnce)
    multiply_columns<kVectorsAtOnce>(p, j, kLanes);
  for (; j < p.columns; j += kLanes) multiply_columns<1>(p, j, smaller(kLanes, p.columns - j));
}

}  // namespace
}  // namespace kernels
