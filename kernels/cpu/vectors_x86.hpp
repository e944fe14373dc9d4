// SPDX-License-Identifier: Apache-2.0
// Vectors of eight floats on x86-64, which both widths of V use. vector_math.hpp explains how this
// file is compiled.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vector_inline.hpp"

namespace kernels {
namespace {

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

KERNELS_INLINE __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
KERNELS_INLINE __m256 load8(const uint16_t* p) {
  __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

// Transposes eight rows of eight floats (or words); at(i) is the address of row i.
template <class At>
KERNELS_INLINE void transpose8_of(float* out, int64_t out_stride, const At& at) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = load8(at(i));
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
template <class T>
KERNELS_INLINE void transpose8(float* out, int64_t out_stride, const T* in, int64_t stride) {
  transpose8_of(out, out_stride, [=](int i) { return in + i * stride; });
}

// Orders stores past the caches before all later ones.
KERNELS_INLINE void end_streams() { _mm_sfence(); }

}  // namespace
}  // namespace kernels
