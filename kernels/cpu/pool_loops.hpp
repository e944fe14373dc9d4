// SPDX-License-Identifier: Apache-2.0
// Loops of max pooling. vector_math.hpp explains how this file is compiled.
#pragma once

#include "kernels/cpu/pool_rows.hpp"
#include "kernels/cpu/vector_math.hpp"

namespace kernels {
namespace {

KERNELS_INLINE Words load_bytes_part(const uint8_t* p, int64_t n) {
  uint8_t lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bytes(lanes);
}
KERNELS_INLINE void store_bytes_part(uint8_t* p, Words a, int64_t n) {
  uint8_t lanes[kLanes];
  store_bytes(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// The channels [c, c + n) of a window; n = kLanes if `whole`.
template <bool whole, class T>
KERNELS_INLINE void pool_channels(const MaxPoolWindow<T>& w, int64_t c, int64_t n) {
  V best = broadcast(-__builtin_inff());
  Words place = words(w.first_place);  // wins if all values are the least
  for (int64_t i = 0; i < w.rows; ++i)
    for (int64_t j = 0; j < w.columns; ++j) {
      const T* x = w.x + i * w.row_step + j * w.column_step + c;
      V v;
      if constexpr (whole)
        v = load(x);
      else
        v = load_part(x, n);
      meet(v, words(w.first_place + uint32_t(i) * w.places + uint32_t(j)), best, place);
    }
  if constexpr (whole) {
    store(w.y + c, best);
    if (w.place) store_bytes(w.place + c, place);
  } else {
    store_part(w.y + c, best, n);
    if (w.place) store_bytes_part(w.place + c, place, n);
  }
}

template <class T>
void max_pool_forward(const MaxPoolWindow<T>& w) {
  int64_t c = 0;
  for (; c + kLanes <= w.count; c += kLanes) pool_channels<true>(w, c, kLanes);
  if (c < w.count) pool_channels<false>(w, c, w.count - c);
}

template <bool whole, class T>
KERNELS_INLINE void spread_channels(const MaxPoolPixel<T>& p, int64_t c, int64_t n) {
  V sum = broadcast(0.0f);
  for (int64_t i = 0; i < p.rows; ++i)
    for (int64_t j = 0; j < p.columns; ++j) {
      const int64_t at = i * p.row_step + j * p.column_step + c;
      const Words here =
          words(p.first_place - uint32_t(i) * p.row_places - uint32_t(j) * p.column_places);
      if constexpr (whole)
        sum = sum + where_equal(load_bytes(p.place + at), here, load(p.dy + at));
      else
        sum = sum + where_equal(load_bytes_part(p.place + at, n), here, load_part(p.dy + at, n));
    }
  if constexpr (whole)
    store(p.dx + c, sum);
  else
    store_part(p.dx + c, sum, n);
}

template <class T>
void max_pool_backward(const MaxPoolPixel<T>& p) {
  int64_t c = 0;
  for (; c + kLanes <= p.count; c += kLanes) spread_channels<true>(p, c, kLanes);
  if (c < p.count) spread_channels<false>(p, c, p.count - c);
}

}  // namespace
}  // namespace kernels
