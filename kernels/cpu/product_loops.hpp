// SPDX-License-Identifier: Apache-2.0
// Vector loops of our own products. vector_math.hpp explains how this file is compiled. Lanes are
// different outputs, so the width of vectors and the shape of tiles change no bit.
#pragma once

#include "kernels/cpu/product_tile.hpp"
#include "kernels/cpu/vector_math.hpp"

namespace kernels {
namespace {

// Sums of 12 by 32 outputs fill 24 of the 32 registers of AVX-512; 6 by 16 fill 12 of 16 of AVX2.
constexpr int kProductRows = kManyRegisters ? 12 : 6, kProductColumns = kManyRegisters ? 32 : 16,
              kProductVectors = kProductColumns / kLanes;
static_assert(kProductRows <= kMostRows && kProductColumns <= kMostColumns);
// Rows are addressed from every third one, so that few registers hold addresses.
constexpr int kRowsOfBase = 3, kProductRowsStep = kProductRows / 3;

template <int kRows>
void multiply_rows(const ProductTile& t) {
  constexpr int kBases = (kRows + kRowsOfBase - 1) / kRowsOfBase;
  V sum[kRows][kProductVectors];
  // The sums are written after the loop, to lines that may be in no cache.
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int j = 0; j < kProductColumns; j += 16) __builtin_prefetch(t.c + r * t.stride + j, 1);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int j = 0; j < kProductVectors; ++j) sum[r][j] = zero();
  const float* base[kBases];
#pragma GCC unroll 4
  for (int i = 0; i < kBases; ++i) base[i] = t.a + i * kRowsOfBase * t.row_step;
  const float* b = t.b;
  for (int64_t k = 0; k < t.length; ++k, b += t.b_step) {
    V columns[kProductVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kProductVectors; ++j) columns[j] = load(b + j * kLanes);
#pragma GCC unroll 2
    for (int j = 0; j < kProductColumns; j += 16) __builtin_prefetch(b + t.ahead + j);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V row = broadcast(base[r / kRowsOfBase][r % kRowsOfBase * t.row_step]);
#pragma GCC unroll 2
      for (int j = 0; j < kProductVectors; ++j) sum[r][j] = fma(row, columns[j], sum[r][j]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kBases; ++i) base[i] += t.step;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int j = 0; j < kProductVectors; ++j) {
      float* c = t.c + r * t.stride + j * kLanes;
      store(c, t.add ? load(c) + sum[r][j] : sum[r][j]);
    }
}

void multiply_tile(const ProductTile& t) {
  if (t.rows > 2 * kProductRowsStep)
    multiply_rows<kProductRows>(t);
  else if (t.rows > kProductRowsStep)
    multiply_rows<2 * kProductRowsStep>(t);
  else
    multiply_rows<kProductRowsStep>(t);
}

// Four vectors at a time: their sums wait for each other less, and share the reads of addresses.
template <int kVectors>
KERNELS_INLINE void multiply_vectors(const LineProducts& p, int64_t c) {
  V sum[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) sum[i] = zero();
  for (int64_t k = 0; k < p.length; ++k)
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
      sum[i] = fma(load(p.a[k] + c + i * kLanes), load(p.b[k] + c + i * kLanes), sum[i]);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    float* to = p.sums + c + i * kLanes;
    store(to, p.add ? load(to) + sum[i] : sum[i]);
  }
}

void multiply_lines(const LineProducts& p) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= p.count; c += 4 * kLanes) multiply_vectors<4>(p, c);
  for (; c + kLanes <= p.count; c += kLanes) multiply_vectors<1>(p, c);
  const int64_t rest = p.count - c;
  if (rest <= 0) return;
  V sum = zero();
  for (int64_t k = 0; k < p.length; ++k)
    sum = fma(load_part(p.a[k] + c, rest), load_part(p.b[k] + c, rest), sum);
  if (p.add) sum = load_part(p.sums + c, rest) + sum;
  store_part(p.sums + c, sum, rest);
}

KERNELS_INLINE float float_of(float a) { return a; }
KERNELS_INLINE float float_of(uint16_t bits) {
  return __builtin_bit_cast(float, uint32_t{bits} << 16);
}

template <class T>
void pack_lines(const PanelOfLines<T>& p) {
  int64_t k = 0;
  for (; k + 8 <= p.length; k += 8)
    for (int64_t i = 0; i < p.width; i += 8)
      transpose8_of(p.panel + k * p.stride + i, p.stride,
                    [&](int line) { return p.lines[i + line] + k; });
  for (; k < p.length; ++k)
    for (int64_t i = 0; i < p.width; ++i) p.panel[k * p.stride + i] = float_of(p.lines[i][k]);
}

template <class T>
void pack_columns(const PanelsOfColumns<T>& p) {
  for (int64_t k = 0; k < p.length; ++k) {
    const T* line = p.lines[k];
    float* to = p.panels + k * p.width;
    for (int64_t first = 0; first < p.count; first += p.width, to += p.length * p.width) {
      const int64_t count = p.count - first < p.width ? p.count - first : p.width;
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) store(to + i, load(line + first + i));
      for (; i < count; ++i) to[i] = float_of(line[first + i]);
      for (; i < p.width; ++i) to[i] = 0;
    }
  }
}

}  // namespace
}  // namespace kernels
