// SPDX-License-Identifier: Apache-2.0
// Loops over rows of batch normalisation. vector_math.hpp explains how this file is compiled.
#pragma once

#include "kernels/cpu/batch_norm_rows.hpp"
#include "kernels/cpu/vector_math.hpp"

namespace kernels {
namespace {

// Sums of kLanes columns, which stay in registers for some rows.
struct ColumnSums {
  double *first, *second;
  Doubles low1, high1, low2, high2;
};
KERNELS_INLINE ColumnSums load_sums(double* first, double* second) {
  constexpr int kHalf = kLanes / 2;
  return {first,
          second,
          load_doubles(first),
          load_doubles(first + kHalf),
          load_doubles(second),
          load_doubles(second + kHalf)};
}
KERNELS_INLINE void store_sums(const ColumnSums& s) {
  constexpr int kHalf = kLanes / 2;
  store_doubles(s.first, s.low1);
  store_doubles(s.first + kHalf, s.high1);
  store_doubles(s.second, s.low2);
  store_doubles(s.second + kHalf, s.high2);
}
// Adds a to the first sums and a * b to the second ones.
KERNELS_INLINE void add_product(ColumnSums& s, V a, V b) {
  const Doubles low = low_doubles(a), high = high_doubles(a);
  s.low1 = s.low1 + low;
  s.high1 = s.high1 + high;
  s.low2 = fma(low, low_doubles(b), s.low2);
  s.high2 = fma(high, high_doubles(b), s.high2);
}

KERNELS_INLINE void add_both(ColumnSums& s, V a, V b) {
  s.low1 = s.low1 + low_doubles(a);
  s.high1 = s.high1 + high_doubles(a);
  s.low2 = s.low2 + low_doubles(b);
  s.high2 = s.high2 + high_doubles(b);
}

// Rows whose sums stay in registers. Sums of this many gradients are f32, because little cancels in
// them. Sums of x^2 are f64, because f32 loses digits when the squared mean is subtracted. With a
// bf16 x they are f32: 8 bits of x make 16 of x^2, and f32 has 24.
constexpr int64_t kSumRows = 8;

// `part`: 0 for kLanes columns, otherwise the number of columns that are left.
template <class T>
KERNELS_INLINE V load_columns(const T* p, int64_t part) {
  return part ? load_part(p, part) : load(p);
}
template <class T>
KERNELS_INLINE void store_columns(T* p, V a, int64_t part) {
  if (part)
    store_part(p, a, part);
  else
    store(p, a);
}

// Stores whole vectors past the caches if kStreams.
template <bool kStreams, class T>
KERNELS_INLINE void put(T* p, V a, int64_t part) {
  if constexpr (kStreams)
    stream(p, a);
  else
    store_columns(p, a, part);
}

// ---- forward
template <bool kStreams, class T>
KERNELS_INLINE void normalise(const BatchNormRows<T>& a, int64_t at, int64_t j, int64_t part) {
  V v = fma(load_columns(a.x + at, part), load(a.factor + j), load(a.shift + j));
  if (a.shortcut) {
    const V s = load_columns(a.shortcut + at, part);
    v = v +
        (a.shortcut_factor ? fma(s, load(a.shortcut_factor + j), load(a.shortcut_shift + j)) : s);
  }
  if (a.relu) v = max(zero(), v);
  put<kStreams>(a.y + at, v, part);
}

template <bool kStreams, class T>
KERNELS_INLINE void normalise_rows(const BatchNormRows<T>& a) {
  const int64_t n = a.columns, whole = n / kLanes * kLanes, part = n - whole;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t j = 0; j < whole; j += kLanes) normalise<kStreams>(a, r * n + j, j, 0);
    if (!kStreams && part) normalise<false>(a, r * n + whole, whole, part);
  }
}

template <class T>
void batch_norm_forward(const BatchNormRows<T>& a) {
  if (!a.streams) return normalise_rows<false>(a);
  normalise_rows<true>(a);
  end_streams();  // other threads read y after this
}

// ---- sums
// Loads columns of a row, and prefetches the same columns kSumRows rows ahead. Short rows are
// prefetched from further ahead, because summing kSumRows of them takes less time than a read
// from memory.
template <class T>
KERNELS_INLINE V load_ahead(const T* p, int64_t columns, int64_t part) {
  constexpr int64_t kLeast = 8192 / int64_t(sizeof(T));
  __builtin_prefetch(p + (kSumRows * columns > kLeast ? kSumRows * columns : kLeast), 0, 2);
  return load_columns(p, part);
}

template <class T>
KERNELS_INLINE void sum_columns(const BatchNormSumRows<T>& a, int64_t begin, int64_t end, int64_t j,
                                int64_t part) {
  ColumnSums sums = load_sums(a.first + j, a.second + j);
  V first = zero(), second = zero();  // of a narrow x
  for (int64_t r = begin; r < end; ++r) {
    const V x = load_ahead(a.x + r * a.columns + j, a.columns, part);
    if constexpr (sizeof(T) == sizeof(float)) {
      add_product(sums, x, x);
    } else {
      first = first + x;
      second = fma(x, x, second);
    }
  }
  if constexpr (sizeof(T) != sizeof(float)) add_both(sums, first, second);
  store_sums(sums);
}

template <class T>
KERNELS_INLINE void sum_rows(const BatchNormSumRows<T>& a, int64_t begin, int64_t end) {
  const int64_t n = a.columns, whole = n / kLanes * kLanes, part = n - whole;
  for (int64_t j = 0; j < whole; j += kLanes) sum_columns(a, begin, end, j, 0);
  if (part) sum_columns(a, begin, end, whole, part);
}

template <class T>
void batch_norm_sums(const BatchNormSumRows<T>& rows) {
  const BatchNormSumRows<T> a = rows;  // stores change no member of a copy
  int64_t r = 0;
  for (; r + kSumRows <= a.rows; r += kSumRows) sum_rows(a, r, r + kSumRows);
  if (r < a.rows) sum_rows(a, r, a.rows);
}

// Elements through which a gradient passes to the norm's result; it is 0 elsewhere.
enum class Passes { everywhere, where_norm_is_above_0, where_y_is_above_0 };

KERNELS_INLINE V rounded_to(const float*, V a) { return a; }
KERNELS_INLINE V rounded_to(const uint16_t*, V a) { return value_of_bits(bf16_bits(a)); }

// Returns the gradient of the norm's result, rounded to T if it is kept.
template <bool adds, bool keeps, Passes passes, class T>
KERNELS_INLINE V gradient_of(const BatchNormGradientSumRows<T>& a, V x, int64_t at, int64_t j,
                             int64_t part) {
  V g = load_ahead(a.dy + at, a.columns, part);
  if constexpr (adds) g = g + load_ahead(a.add + at, a.columns, part);
  if constexpr (passes == Passes::where_y_is_above_0)
    g = where_above(load_ahead(a.y + at, a.columns, part), zero(), g);
  if constexpr (passes == Passes::where_norm_is_above_0)
    g = where_above(fma(x, load(a.factor + j), load(a.shift + j)), zero(), g);
  if constexpr (keeps) {
    store_columns(a.g + at, g, part);
    g = rounded_to(a.g, g);
  }
  return g;
}

template <bool adds, bool keeps, Passes passes, class T>
KERNELS_INLINE void sum_gradients(const BatchNormGradientSumRows<T>& a, int64_t begin, int64_t end,
                                  int64_t j, int64_t part) {
  const V mean = load(a.mean + j);
  V first = zero(), second = zero();
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * a.columns + j;
    const V x = load_ahead(a.x + at, a.columns, part);
    const V g = gradient_of<adds, keeps, passes>(a, x, at, j, part);
    first = first + g;
    second = fma(g, x - mean, second);
  }
  ColumnSums sums = load_sums(a.first + j, a.second + j);
  add_both(sums, first, second);
  store_sums(sums);
}

template <bool adds, bool keeps, Passes passes, class T>
void sum_gradient_rows(const BatchNormGradientSumRows<T> a) {  // stores change no member of a copy
  const int64_t n = a.columns, whole = n / kLanes * kLanes, part = n - whole;
  for (int64_t r = 0; r < a.rows; r += kSumRows) {
    const int64_t end = r + kSumRows < a.rows ? r + kSumRows : a.rows;
    for (int64_t j = 0; j < whole; j += kLanes) sum_gradients<adds, keeps, passes>(a, r, end, j, 0);
    if (part) sum_gradients<adds, keeps, passes>(a, r, end, whole, part);
  }
}

template <bool adds, bool keeps, class T>
KERNELS_INLINE void sum_passed_gradients(const BatchNormGradientSumRows<T>& a) {
  if (a.y) return sum_gradient_rows<adds, keeps, Passes::where_y_is_above_0>(a);
  if (a.relu) return sum_gradient_rows<adds, keeps, Passes::where_norm_is_above_0>(a);
  sum_gradient_rows<adds, keeps, Passes::everywhere>(a);
}

template <class T>
void batch_norm_gradient_sums(const BatchNormGradientSumRows<T>& a) {
  if (a.add && a.g) return sum_passed_gradients<true, true>(a);
  if (a.add) return sum_passed_gradients<true, false>(a);
  if (a.g) return sum_passed_gradients<false, true>(a);
  sum_passed_gradients<false, false>(a);
}

// ---- backward
template <bool kStreams, class T>
KERNELS_INLINE void propagate(const BatchNormGradientRows<T>& a, int64_t at, int64_t j,
                              int64_t part) {
  const V x = load_columns(a.x + at, part), factor = load(a.factor + j);
  V g = load_columns(a.dy + at, part);
  if (a.relu) g = where_above(fma(x, factor, load(a.shift + j)), zero(), g);
  put<kStreams>(a.dx + at, fma(g, factor, fma(x, load(a.slope + j), load(a.offset + j))), part);
}

template <bool kStreams, class T>
KERNELS_INLINE void propagate_rows(const BatchNormGradientRows<T>& a) {
  const int64_t n = a.columns, whole = n / kLanes * kLanes, part = n - whole;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t j = 0; j < whole; j += kLanes) propagate<kStreams>(a, r * n + j, j, 0);
    if (!kStreams && part) propagate<false>(a, r * n + whole, whole, part);
  }
}

template <class T>
void batch_norm_backward(const BatchNormGradientRows<T>& a) {
  if (!a.streams) return propagate_rows<false>(a);
  propagate_rows<true>(a);
  end_streams();  // other threads read dx after this
}

}  // namespace
}  // namespace kernels
