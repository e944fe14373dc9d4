// SPDX-License-Identifier: Apache-2.0
// Vectors of floats as wide as the instruction set allows, and vector functions that libm lacks.
// This file is compiled once per instruction set: vector_avx2.cpp and vector_avx512*.cpp include
// it, the latter after a `#pragma GCC target`. Everything here has internal linkage, because no
// AVX-512 code may reach the linker under a name that other files share. For the same reason this
// file includes no standard header with inline functions; the .cpp files include those first.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace kernels {
namespace {

#define KERNELS_INLINE static inline __attribute__((always_inline))

#ifdef KERNELS_AVX512

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

#else

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

#endif

KERNELS_INLINE V load_part(const uint16_t* p, int64_t n) {
  uint16_t lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
KERNELS_INLINE void store_part(uint16_t* p, V a, int64_t n) {
  uint16_t lanes[kLanes];
  store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

KERNELS_INLINE Words load_bits_part(const uint16_t* p, int64_t n) {
  uint16_t lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bits(lanes);
}

KERNELS_INLINE V zero() { return V{}; }

KERNELS_INLINE V add_product(V sum, V a, V b) { return fma(a, b, sum); }
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

KERNELS_INLINE float sum8(__m256 a) {  // adds in a fixed tree
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
KERNELS_INLINE float largest8(__m256 a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
#ifdef KERNELS_AVX512
KERNELS_INLINE float sum_of(V a) { return sum8(_mm256_add_ps(low_half(a), high_half(a))); }
KERNELS_INLINE float largest_of(V a) { return largest8(_mm256_max_ps(low_half(a), high_half(a))); }
#else
KERNELS_INLINE float sum_of(V a) { return sum8(a); }
KERNELS_INLINE float largest_of(V a) { return largest8(a); }
#endif

// Returns e^r to about 1 ulp for x = n ln 2 + r with |r| <= ln(2)/2. e^r = 1 + r + r^2 q(r), where
// the polynomial q minimises the largest relative error (4e-9).
KERNELS_INLINE V exp_of_rest(V x, V n) {
  V r = fma(n, broadcast(-0.693359375f), x);          // 9 bits, so the product is exact
  r = fma(n, broadcast(2.12194440054690583e-4f), r);  // the rest of ln 2
  V q = fma(broadcast(0.00138145406f), r, broadcast(0.00836874545f));
  q = fma(q, r, broadcast(0.041668389f));
  q = fma(q, r, broadcast(0.166665211f));
  q = fma(q, r, broadcast(0.49999994f));
  return fma(r * r, q, r) + broadcast(1.0f);
}

// exp for x within [-86, 88], where the result is a normal number.
KERNELS_INLINE V exp_within(V x) {
  V t = fma(x, broadcast(1.44269504088896341f), broadcast(12582912.0f));
  return add_to_exponent(exp_of_rest(x, t - broadcast(12582912.0f)), t);
}

// exp for any x; one outside [-86, 87] moves to the nearer end. NaN stays NaN.
KERNELS_INLINE V exp_normal(V x) {
  return exp_within(max(broadcast(-86.0f), min(broadcast(87.0f), x)));
}

// exp for the arguments of a softmax, which are at most 0, apart from rounding. Returns 0 below
// -86. NaN stays NaN.
KERNELS_INLINE V exp_below(V x) {
  return where_not_less(x, broadcast(-86.0f), exp_within(max(broadcast(-86.0f), x)));
}

// A base::Stream whose draws become dropout factors: `keep` if uniform >= rate, else 0.
// draw_factors computes kLanes blocks of four draws at once.
struct Draws {
  uint32_t key0, key1;
  float rate, keep;
};

// Block numbers of the lanes, in the order that makes draw_factors write its results sorted.
alignas(64) constexpr uint32_t kBlockOfLane[2][16] = {
    {0, 2, 4, 6, 1, 3, 5, 7, 0, 0, 0, 0, 0, 0, 0, 0},
    {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}};

// out[4 * kLanes] = the factors of draws 4 * block, 4 * block + 1, ...
KERNELS_INLINE void draw_factors(V out[4], uint64_t block, const Draws& draws) {
  Words lane = load_words(kBlockOfLane[kLanes == 16]);
  Words c0 = add(words(uint32_t(block)), lane);
  Words c1 = add(words(uint32_t(block >> 32)), carry_of_add(c0, lane));
  Words c2 = words(0x5452u), c3 = words(0x4149u);
  uint32_t key0 = draws.key0, key1 = draws.key1;
  for (int round_number = 0; round_number < 10; ++round_number) {
    Words a_low, a_high, b_low, b_high;
    multiply_wide(c0, words(0xD2511F53u), a_low, a_high);
    multiply_wide(c2, words(0xCD9E8D57u), b_low, b_high);
    c0 = exclusive_or(exclusive_or(b_high, c1), words(key0));
    c2 = exclusive_or(exclusive_or(a_high, c3), words(key1));
    c1 = b_low;
    c3 = a_low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  Words low01 = zip32_low(c0, c1), high01 = zip32_high(c0, c1);
  Words low23 = zip32_low(c2, c3), high23 = zip32_high(c2, c3);
  Words sorted[4] = {zip64_low(low01, low23), zip64_high(low01, low23), zip64_low(high01, high23),
                     zip64_high(high01, high23)};
  for (int i = 0; i < 4; ++i) {
    V u = uniform_of(sorted[i]);
    out[i] = where_not_less(u, broadcast(draws.rate), broadcast(draws.keep));
  }
}

}  // namespace
}  // namespace kernels
