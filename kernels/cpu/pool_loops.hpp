// SPDX-License-Identifier: Apache-2.0
// Loops of max pooling. vector_math.hpp explains how this file is compiled.
#pragma once

#include "kernels/cpu/pool_rows.hpp"
#include "kernels/cpu/vector_math.hpp"

namespace kernels {
namespace {

#ifdef KERNELS_AVX512
// Keeps v and its place where it is larger than the best value, or not a number.
KERNELS_INLINE void meet(V v, Words here, V& best, Words& place) {
  const __mmask16 wins =
      _mm512_cmp_ps_mask(v, best, _CMP_GT_OQ) | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  best = _mm512_mask_mov_ps(best, wins, v);
  place = _mm512_mask_mov_epi32(place, wins, here);
}
// Returns 0 in lanes where a and b differ.
KERNELS_INLINE V where_equal(Words a, Words b, V value) {
  return _mm512_maskz_mov_ps(_mm512_cmpeq_epi32_mask(a, b), value);
}
KERNELS_INLINE Words load_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
KERNELS_INLINE void store_bytes(uint8_t* p, Words a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
#else
KERNELS_INLINE void meet(V v, Words here, V& best, Words& place) {
  const V wins =
      _mm256_or_ps(_mm256_cmp_ps(v, best, _CMP_GT_OQ), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  best = _mm256_blendv_ps(best, v, wins);
  place = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(place), _mm256_castsi256_ps(here), wins));
}
KERNELS_INLINE V where_equal(Words a, Words b, V value) {
  return _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)), value);
}
KERNELS_INLINE Words load_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
KERNELS_INLINE void store_bytes(uint8_t* p, Words a) {
  const __m128i pairs = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(pairs, pairs));
}
#endif

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
