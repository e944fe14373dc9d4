// SPDX-License-Identifier: Apache-2.0
// Loops of weight gradients over panels. vector_math.hpp explains how this file is compiled.
// Without bf16 instructions there are no pairs of bf16.
#pragma once

#include "kernels/cpu/vector_math.hpp"
#include "kernels/cpu/weight_gradient_rows.hpp"

namespace kernels {
namespace {

#ifdef KERNELS_AVX512_BF16
template <class T>
constexpr bool kHasTiles = true;
#else
template <class T>
constexpr bool kHasTiles = sizeof(T) == sizeof(float);
#endif

KERNELS_INLINE void pack_of_panel(float* to, const float* const* rows, int64_t first) {
#pragma GCC unroll 2
  for (int i = 0; i < kPanelColumns; i += kLanes) store(to + i, load(rows[0] + first + i));
}
KERNELS_INLINE V load_of_panel(const float* p) { return load(p); }
// Returns one column of a step, in all lanes.
KERNELS_INLINE V column_of_panel(const float* p) { return broadcast(*p); }
#ifdef KERNELS_AVX512_BF16
KERNELS_INLINE void pack_of_panel(uint16_t* to, const uint16_t* const* rows, int64_t first) {
  const auto half = [&](int i) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + first));
  };
  const Words both = _mm512_inserti64x4(_mm512_castsi256_si512(half(0)), half(1), 1);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), both));
}
KERNELS_INLINE Words load_of_panel(const uint16_t* p) {
  return load_words(reinterpret_cast<const uint32_t*>(p));
}
KERNELS_INLINE Words column_of_panel(const uint16_t* p) {
  uint32_t both;
  __builtin_memcpy(&both, p, sizeof(both));
  return words(both);
}
#endif

// Rows are far from each other, so processors do not prefetch the next ones. Panels are too large
// for the first-level cache, and processors wait for each line of them that a store misses.
constexpr int64_t kStepsAhead = 8, kStoresAhead = 2;

template <class T>
void pack_panels(const PanelRows<T>& rows) {
  const PanelRows<T> p = rows;  // stores change no member of a copy
  constexpr int64_t kRows = kRowsOfStep<T>;
  for (int64_t s = 0; s < p.steps; ++s) {
    const int64_t later = s + kStepsAhead < p.steps ? s + kStepsAhead : p.steps - 1;
    for (int64_t i = 0; i < p.panels; ++i) {
      const int64_t column = p.first + i * kPanelColumns;
      for (int64_t r = 0; r < kRows; ++r) __builtin_prefetch(p.rows[later * kRows + r] + column);
      T* const to = p.panel + i * p.size + s * kPanelColumns * kRows;
      __builtin_prefetch(to + kStoresAhead * kPanelColumns * kRows, 1);
      pack_of_panel(to, p.rows + s * kRows, column);
    }
  }
}

// Multiplies kColumns columns of dy, from `first` on, with kVectors vectors of x, from `panel` on.
// Their sums stay in registers. `pass` counts the calls for a tile. The first two prefetch.
template <int kColumns, int kVectors, class T>
KERNELS_INLINE void add_columns(const WeightGradientTile<T>& t, int64_t first, int64_t panel,
                                int64_t pass) {
  constexpr int64_t kRows = kRowsOfStep<T>;
  V sum[kColumns][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sum[i][j] = zero();
  const T *dy = t.dy + first * kRows, *x = t.x + panel * t.size;
  const int64_t skipped = pass * t.steps;
  const T* const* const later = t.later + skipped;
  for (int64_t s = 0; s < t.steps; ++s, dy += kPanelColumns * kRows, x += kPanelColumns * kRows) {
    if (s < t.later_count - skipped) __builtin_prefetch(later[s], 0, 2);
    decltype(load_of_panel(x)) of_x[kVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j)
      of_x[j] = load_of_panel(x + j * kLanes / kPanelColumns * t.size +
                              j * kLanes % kPanelColumns * kRows);
#pragma GCC unroll 8
    for (int i = 0; i < kColumns; ++i) {
      const auto of_dy = column_of_panel(dy + i * kRows);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) sum[i][j] = add_product(sum[i][j], of_dy, of_x[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      float* at = t.sums + (first + i) * t.stride + panel * kPanelColumns + j * kLanes;
      store(at, t.add ? load(at) + sum[i][j] : sum[i][j]);
    }
}

// The sums of 8 columns and two panels fill 16 of AVX-512's 32 registers. The sums of 6 columns
// and one panel fill 12 of AVX2's 16 registers.
template <class T>
void add_tile(const WeightGradientTile<T>& t) {
#ifdef KERNELS_AVX512
  for (int64_t pass = 0; pass < 2; ++pass) {
    if (t.panels == 2)
      add_columns<8, 2>(t, 8 * pass, 0, pass);
    else
      add_columns<8, 1>(t, 8 * pass, 0, pass);
  }
#else
  constexpr int kVectors = kPanelColumns / kLanes;
  for (int64_t panel = 0; panel < t.panels; ++panel) {
    add_columns<6, kVectors>(t, 0, panel, 3 * panel);
    add_columns<5, kVectors>(t, 6, panel, 3 * panel + 1);
    add_columns<5, kVectors>(t, 11, panel, 3 * panel + 2);
  }
#endif
}

template <class T>
constexpr auto pack_panels_loop() -> void (*)(const PanelRows<T>&) {
  if constexpr (kHasTiles<T>) return pack_panels<T>;
  return nullptr;
}
template <class T>
constexpr auto add_tile_loop() -> void (*)(const WeightGradientTile<T>&) {
  if constexpr (kHasTiles<T>) return add_tile<T>;
  return nullptr;
}

}  // namespace
}  // namespace kernels
