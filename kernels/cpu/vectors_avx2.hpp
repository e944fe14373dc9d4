// SPDX-License-Identifier: Apache-2.0
// Vectors of eight floats in AVX2. vector_math.hpp explains how this file is compiled, and
// vectors_generic.hpp has the same functions in plain C++, with their meaning.
#pragma once

#include "kernels/cpu/vectors_x86.hpp"

namespace kernels {
namespace {
namespace eight {

constexpr int kLanes = 8;
using V = __m256;
using Words = __m256i;

alignas(32) constexpr int32_t kLaneMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                               0,  0,  0,  0,  0,  0,  0,  0};

KERNELS_INLINE V load(const float* p) { return _mm256_loadu_ps(p); }
KERNELS_INLINE void store(float* p, V a) { _mm256_storeu_ps(p, a); }
KERNELS_INLINE void stream(float* p, V a) { _mm256_stream_ps(p, a); }
KERNELS_INLINE V load(const uint16_t* p) {
  __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
KERNELS_INLINE Words bf16_bits(V a) {
  __m256i u = _mm256_castps_si256(a),
          odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd), 16);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7FC0), nan);
}
KERNELS_INLINE void store(uint16_t* p, V a) {
  __m256i r = bf16_bits(a);
  r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(r));
}
KERNELS_INLINE void stream(uint16_t* p, V a) { store(p, a); }
KERNELS_INLINE __m256i first_lanes(int64_t n) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMask + 8 - n));
}
KERNELS_INLINE V load_part(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, first_lanes(n));
}
KERNELS_INLINE void store_part(float* p, V a, int64_t n) {
  alignas(32) float lanes[kLanes];  // AMD's masked stores are slower than this
  _mm256_store_ps(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
KERNELS_INLINE V keep_first(V a, int64_t n, V fill) {
  return _mm256_blendv_ps(fill, a, _mm256_castsi256_ps(first_lanes(n)));
}
KERNELS_INLINE V broadcast(float a) { return _mm256_set1_ps(a); }
KERNELS_INLINE V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
KERNELS_INLINE V less_product(V c, V a, V b) { return _mm256_fnmadd_ps(a, b, c); }
KERNELS_INLINE V max(V a, V b) { return _mm256_max_ps(a, b); }
KERNELS_INLINE V min(V a, V b) { return _mm256_min_ps(a, b); }
KERNELS_INLINE V where_not_less(V x, V bound, V value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_NLT_UQ), value);
}
KERNELS_INLINE V where_above(V x, V bound, V value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_NLE_UQ), value);
}

KERNELS_INLINE Words words(uint32_t a) { return _mm256_set1_epi32(int(a)); }
KERNELS_INLINE Words load_words(const uint32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
KERNELS_INLINE void store_words(uint32_t* p, Words a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
}
KERNELS_INLINE Words load_bits(const uint16_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
KERNELS_INLINE Words pairs_of(Words first, Words second) {
  return _mm256_or_si256(first, _mm256_slli_epi32(second, 16));
}
KERNELS_INLINE V value_of_bits(Words a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
KERNELS_INLINE Words add(Words a, Words b) { return _mm256_add_epi32(a, b); }
KERNELS_INLINE Words exclusive_or(Words a, Words b) { return _mm256_xor_si256(a, b); }
KERNELS_INLINE Words carry_of_add(Words sum, Words addend) {
  __m256i sign = _mm256_set1_epi32(int(0x80000000u));
  __m256i less = _mm256_cmpgt_epi32(_mm256_xor_si256(addend, sign), _mm256_xor_si256(sum, sign));
  return _mm256_srli_epi32(less, 31);
}
KERNELS_INLINE void multiply_wide(Words a, Words b, Words& low, Words& high) {
  Words even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
KERNELS_INLINE V uniform_of(Words bits) {
  return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(bits, 8)), _mm256_set1_ps(0x1p-24f));
}
KERNELS_INLINE V add_to_exponent(V a, V t) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
KERNELS_INLINE Words zip32_low(Words a, Words b) { return _mm256_unpacklo_epi32(a, b); }
KERNELS_INLINE Words zip32_high(Words a, Words b) { return _mm256_unpackhi_epi32(a, b); }
KERNELS_INLINE Words zip64_low(Words a, Words b) { return _mm256_unpacklo_epi64(a, b); }
KERNELS_INLINE Words zip64_high(Words a, Words b) { return _mm256_unpackhi_epi64(a, b); }

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

using Doubles = __m256d;
KERNELS_INLINE Doubles low_doubles(V a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
KERNELS_INLINE Doubles high_doubles(V a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
KERNELS_INLINE Doubles load_doubles(const double* p) { return _mm256_loadu_pd(p); }
KERNELS_INLINE void store_doubles(double* p, Doubles a) { _mm256_storeu_pd(p, a); }
KERNELS_INLINE Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }

KERNELS_INLINE float sum_of(V a) { return sum8(a); }
KERNELS_INLINE float largest_of(V a) { return largest8(a); }

}  // namespace eight
}  // namespace
}  // namespace kernels
