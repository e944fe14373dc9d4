// SPDX-License-Identifier: Apache-2.0
// Vectors of 16 floats in AVX-512. vector_math.hpp explains how this
// file is compiled, and vectors_generic.hpp has the same functions in plain C++, with their
// meaning.
#pragma once

#include "kernels/cpu/vectors_x86.hpp"

namespace kernels {
namespace {

constexpr int kLanes = 16;
using V = __m512;
using Words = __m512i;  // 32-bit lanes

KERNELS_INLINE V load(const float* p) { return _mm512_loadu_ps(p); }
KERNELS_INLINE void store(float* p, V a) { _mm512_storeu_ps(p, a); }
// Stores past the caches, to multiples of the size that is stored.
KERNELS_INLINE void stream(float* p, V a) { _mm512_stream_ps(p, a); }
KERNELS_INLINE V load(const uint16_t* p) {  // bfloat16
  __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}
// Returns the bits of the nearest bfloat16, ties to even. NaN becomes 0x7FC0, as in bf16_value.hpp.
KERNELS_INLINE Words bf16_bits(V a) {
  __m512i u = _mm512_castps_si512(a),
          odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), odd), 16);
  return _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q),
                               _mm512_set1_epi32(0x7FC0));
}
KERNELS_INLINE void store(uint16_t* p, V a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bf16_bits(a)));
}
KERNELS_INLINE void stream(uint16_t* p, V a) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bf16_bits(a)));
}
KERNELS_INLINE __mmask16 first_lanes(int64_t n) { return __mmask16((1u << n) - 1); }
KERNELS_INLINE V load_part(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
KERNELS_INLINE void store_part(float* p, V a, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a);
}
// Replaces lanes from n on by `fill`.
KERNELS_INLINE V keep_first(V a, int64_t n, V fill) {
  return _mm512_mask_blend_ps(first_lanes(n), fill, a);
}
KERNELS_INLINE V broadcast(float a) { return _mm512_set1_ps(a); }
KERNELS_INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
// Returns c - a b, rounded once.
KERNELS_INLINE V less_product(V c, V a, V b) { return _mm512_fnmadd_ps(a, b, c); }
KERNELS_INLINE V max(V a, V b) { return _mm512_max_ps(a, b); }  // b if either is NaN
KERNELS_INLINE V min(V a, V b) { return _mm512_min_ps(a, b); }  // b if either is NaN
KERNELS_INLINE __m256 low_half(V a) { return _mm512_castps512_ps256(a); }
KERNELS_INLINE __m256 high_half(V a) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
}
// Returns 0 in lanes where x < bound, else `value`, also where x is NaN.
KERNELS_INLINE V where_not_less(V x, V bound, V value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), value);
}
// Returns 0 in lanes where x <= bound, else `value`, also where x is NaN.
KERNELS_INLINE V where_above(V x, V bound, V value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLE_UQ), value);
}

KERNELS_INLINE Words words(uint32_t a) { return _mm512_set1_epi32(int(a)); }
KERNELS_INLINE Words load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
KERNELS_INLINE void store_words(uint32_t* p, Words a) { _mm512_storeu_si512(p, a); }
KERNELS_INLINE Words load_bits(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KERNELS_INLINE Words pairs_of(Words first, Words second) {
  return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}
KERNELS_INLINE V value_of_bits(Words a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
KERNELS_INLINE Words add(Words a, Words b) { return _mm512_add_epi32(a, b); }
KERNELS_INLINE Words exclusive_or(Words a, Words b) { return _mm512_xor_si512(a, b); }
// Returns 1 in lanes where sum = x + addend wrapped around, else 0.
KERNELS_INLINE Words carry_of_add(Words sum, Words addend) {
  return _mm512_maskz_set1_epi32(_mm512_cmplt_epu32_mask(sum, addend), 1);
}
KERNELS_INLINE void multiply_wide(Words a, Words b, Words& low, Words& high) {
  Words even = _mm512_mul_epu32(a, b), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
  low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
}
// Returns the uniform numbers that base::Stream::uniform makes of these bits.
KERNELS_INLINE V uniform_of(Words bits) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(bits, 8)), _mm512_set1_ps(0x1p-24f));
}
// Returns a * 2^n for t = n + 1.5 * 2^23, by adding n to the exponent. The result must be normal.
KERNELS_INLINE V add_to_exponent(V a, V t) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
KERNELS_INLINE Words zip32_low(Words a, Words b) { return _mm512_unpacklo_epi32(a, b); }
KERNELS_INLINE Words zip32_high(Words a, Words b) { return _mm512_unpackhi_epi32(a, b); }
KERNELS_INLINE Words zip64_low(Words a, Words b) { return _mm512_unpacklo_epi64(a, b); }
KERNELS_INLINE Words zip64_high(Words a, Words b) { return _mm512_unpackhi_epi64(a, b); }

// Takes v and its place in lanes where v is larger than the best value, or NaN.
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

using Doubles = __m512d;
KERNELS_INLINE Doubles low_doubles(V a) { return _mm512_cvtps_pd(low_half(a)); }
KERNELS_INLINE Doubles high_doubles(V a) { return _mm512_cvtps_pd(high_half(a)); }
KERNELS_INLINE Doubles load_doubles(const double* p) { return _mm512_loadu_pd(p); }
KERNELS_INLINE void store_doubles(double* p, Doubles a) { _mm512_storeu_pd(p, a); }
KERNELS_INLINE Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }

KERNELS_INLINE float sum_of(V a) { return sum8(_mm256_add_ps(low_half(a), high_half(a))); }
KERNELS_INLINE float largest_of(V a) { return largest8(_mm256_max_ps(low_half(a), high_half(a))); }

#ifdef KERNELS_AVX512_BF16
// Returns sum plus the products of both elements of the pairs, the later ones first. Denormal
// numbers count as 0.
// The optimizer of Clang 16 crashes on vectors of its type __bf16, so that compiler gets assembly.
#if defined(__clang__) && __clang_major__ == 16
KERNELS_INLINE V add_product(V sum, Words a, Words b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
#else
KERNELS_INLINE V add_product(V sum, Words a, Words b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
#endif
// Rounds to bfloat16. The result holds `first`, then `second`; pairs_of interleaves them.
KERNELS_INLINE Words bf16_of_two(V first, V second) {
  return (Words)_mm512_cvtne2ps_pbh(second, first);
}
alignas(64) constexpr uint16_t kInTurn[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                              21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                              11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
KERNELS_INLINE Words pairs_of(V first, V second) {
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), bf16_of_two(first, second));
}
#endif

}  // namespace
}  // namespace kernels
