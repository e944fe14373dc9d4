// SPDX-License-Identifier: Apache-2.0
// Small matrix products C = A . B for attention, whose operands stay in cache. A tile of C stays in
// registers while it reads a panel of B and single elements of A, which it broadcasts.
// vector_math.hpp explains how this file is compiled.
//
// Operands are floats, also for bfloat16 tensors. If the CPU has bf16 instructions, operands of
// bfloat16 tensors are words that hold a pair of bfloat16. A pair is two neighbours along the
// summed dimension, the earlier one in the low half. A step of a product sums over one element or
// one pair. If the number of elements is odd, the last pair ends in a zero.
#pragma once

#include "kernels/cpu/vector_math.hpp"

namespace kernels {
namespace {

// Rows and vectors of a tile. They suit the 32 registers of AVX-512, or the 16 of AVX2. All have as
// many rows, because the rows of a tile decide how many zero weights a causal row multiplies.
constexpr int kTileRows = 6;
constexpr int kTileVectors = (kManyRegisters ? 64 : 16) / kLanes;
constexpr int64_t kPanel = kTileVectors * kLanes;  // columns of a packed panel

KERNELS_INLINE int64_t lanes_up(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
KERNELS_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The type of the operands of products of T.
template <class T>
struct OperandOf {
  using Type = float;
};
#ifdef KERNELS_AVX512_BF16
template <>
struct OperandOf<uint16_t> {
  using Type = uint32_t;
};
#endif
template <class T>
using Operand = typename OperandOf<T>::Type;

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;
template <class T>
constexpr bool kPairs = kSame<Operand<T>, uint32_t>;

// Returns the steps of a sum over k elements of T.
template <class T>
KERNELS_INLINE int64_t steps_of(int64_t k) {
  return kPairs<T> ? (k + 1) / 2 : k;
}

// Returns the size of a packed B [k, n]: panels of kPanel columns one after the other. The last
// panel is as wide as the rest of n, rounded up to lanes; its columns past n are zero. A panel is
// stored step after step, and panel p begins at p * kPanel * steps.
template <class T>
KERNELS_INLINE int64_t packed_size(int64_t k, int64_t n) {
  return steps_of<T>(k) * lanes_up(n);
}

// Packs B [k, n] from rows of n elements.
template <class T>
KERNELS_INLINE void pack_rows(float* out, const T* rows, int64_t stride, int64_t k, int64_t n) {
  for (int64_t j0 = 0; j0 < n; j0 += kPanel) {
    int64_t width = smaller(kPanel, lanes_up(n - j0)), filled = smaller(kPanel, n - j0);
    float* panel = out + j0 * k;
    for (int64_t r = 0; r < k; ++r, panel += width) {
      const T* in = rows + r * stride + j0;
      int64_t j = 0;
      for (; j + kLanes <= filled; j += kLanes) store(panel + j, load(in + j));
      if (j < filled) store(panel + j, load_part(in + j, filled - j));
    }
  }
}
KERNELS_INLINE void pack_rows(uint32_t* out, const uint16_t* rows, int64_t stride, int64_t k,
                              int64_t n) {
  int64_t steps = steps_of<uint16_t>(k);
  for (int64_t j0 = 0; j0 < n; j0 += kPanel) {
    int64_t width = smaller(kPanel, lanes_up(n - j0)), filled = smaller(kPanel, n - j0);
    uint32_t* panel = out + j0 * steps;
    for (int64_t r = 0; r < k; r += 2, panel += width) {  // rows r and r + 1 make pairs
      const uint16_t *in = rows + r * stride + j0, *next = in + stride;
      for (int64_t j = 0; j < filled; j += kLanes) {
        bool whole = j + kLanes <= filled;
        Words second = r + 1 == k ? words(0)
                       : whole    ? load_bits(next + j)
                                  : load_bits_part(next + j, filled - j);
        store_words(
            panel + j,
            pairs_of(whole ? load_bits(in + j) : load_bits_part(in + j, filled - j), second));
      }
    }
  }
}

KERNELS_INLINE float load1(const float* p) { return *p; }
KERNELS_INLINE float load1(const uint16_t* p) {
  return __builtin_bit_cast(float, uint32_t(*p) << 16);
}

// Packs B [k, n] from n rows of k elements: B is their transpose.
template <class T>
KERNELS_INLINE void pack_transposed(float* out, const T* rows, int64_t stride, int64_t k,
                                    int64_t n) {
  for (int64_t j0 = 0; j0 < n; j0 += kPanel) {
    int64_t width = smaller(kPanel, lanes_up(n - j0)), filled = smaller(kPanel, n - j0);
    float* panel = out + j0 * k;
    int64_t j = 0;
    for (; j + 8 <= filled; j += 8) {
      const T* in = rows + (j0 + j) * stride;
      int64_t d = 0;
      for (; d + 8 <= k; d += 8) transpose8(panel + d * width + j, width, in + d, stride);
      for (; d < k; ++d)
        for (int64_t i = 0; i < 8; ++i) panel[d * width + j + i] = load1(in + i * stride + d);
    }
    for (int64_t d = 0; d < k; ++d)
      for (int64_t i = j; i < width; ++i)
        panel[d * width + i] = i < filled ? load1(rows + (j0 + i) * stride + d) : 0;
  }
}
// A row already holds its elements in pairs, so packing transposes words.
KERNELS_INLINE void pack_transposed(uint32_t* out, const uint16_t* rows, int64_t stride, int64_t k,
                                    int64_t n) {
  // whole: the steps that transpose8 can pack
  int64_t steps = steps_of<uint16_t>(k), whole = stride % 2 == 0 ? k / 16 * 8 : 0;
  auto pair = [&](const uint16_t* row, int64_t t) {
    return uint32_t(row[2 * t]) | (2 * t + 1 < k ? uint32_t(row[2 * t + 1]) << 16 : 0);
  };
  for (int64_t j0 = 0; j0 < n; j0 += kPanel) {
    int64_t width = smaller(kPanel, lanes_up(n - j0)), filled = smaller(kPanel, n - j0), j = 0;
    uint32_t* panel = out + j0 * steps;
    for (; j + 8 <= filled; j += 8) {
      const uint16_t* in = rows + (j0 + j) * stride;
      for (int64_t t = 0; t < whole; t += 8)
        transpose8(reinterpret_cast<float*>(panel + t * width + j), width,
                   reinterpret_cast<const float*>(in + 2 * t), stride / 2);
      for (int64_t t = whole; t < steps; ++t)
        for (int64_t i = 0; i < 8; ++i) panel[t * width + j + i] = pair(in + i * stride, t);
    }
    for (int64_t t = 0; t < steps; ++t)
      for (int64_t i = j; i < width; ++i)
        panel[t * width + i] = i < filled ? pair(rows + (j0 + i) * stride, t) : 0;
  }
}

KERNELS_INLINE V load_step(const float* p) { return load(p); }
KERNELS_INLINE Words load_step(const uint32_t* p) { return load_words(p); }
KERNELS_INLINE V spread(float a) { return broadcast(a); }
KERNELS_INLINE Words spread(uint32_t a) { return words(a); }

// Computes c[kTileRows, NV vectors] = (or +=, if Add) sum over steps t of a(i, t) * b[t, :].
//   a(i, t) = Transposed ? a[t * lda + i] : a[i * lda + t]
template <class T, int NV, bool Transposed, bool Add>
KERNELS_INLINE void tile(float* c, int64_t ldc, const Operand<T>* a, int64_t lda,
                         const Operand<T>* b, int64_t ldb, int64_t steps) {
  V sum[kTileRows][NV];
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) sum[i][v] = Add ? load(c + i * ldc + v * kLanes) : zero();
  for (int64_t t = 0; t < steps; ++t, b += ldb) {
    decltype(load_step(b)) row[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) row[v] = load_step(b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
      auto x = spread(Transposed ? a[t * lda + i] : a[i * lda + t]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) sum[i][v] = add_product(sum[i][v], x, row[v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(c + i * ldc + v * kLanes, sum[i][v]);
}

// Computes columns [0, used) of kTileRows rows of C. It sums over the steps [begin, end) of the
// packed B [steps, n]; `used` and n are multiples of kLanes. `a` points to the element of step 0.
template <class T, bool Transposed, bool Add>
void strip(float* c, int64_t ldc, const Operand<T>* a, int64_t lda, const Operand<T>* packed,
           int64_t steps, int64_t begin, int64_t end, int64_t used, int64_t n) {
  a += Transposed ? begin * lda : begin;
  for (int64_t j = 0; j < used; j += kPanel) {
    int64_t width = smaller(kPanel, n - j), count = end - begin;
    const Operand<T>* b = packed + j * steps + begin * width;
    switch (smaller(used - j, width) / kLanes) {
      case 1:
        tile<T, 1, Transposed, Add>(c + j, ldc, a, lda, b, width, count);
        break;
#ifndef KERNELS_WIDE
      case 2:
        tile<T, 2, Transposed, Add>(c + j, ldc, a, lda, b, width, count);
        break;
#endif
#ifdef KERNELS_AVX512
      case 3:
        tile<T, 3, Transposed, Add>(c + j, ldc, a, lda, b, width, count);
        break;
      case 4:
        tile<T, 4, Transposed, Add>(c + j, ldc, a, lda, b, width, count);
        break;
#endif
    }
  }
}

}  // namespace
}  // namespace kernels
