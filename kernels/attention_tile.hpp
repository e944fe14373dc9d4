// Small matrix products for attention, whose operands stay in cache: a tile of C is held in registers while one
// row-panel of B and broadcast elements of A stream by. See vector_math.hpp for how it is compiled.
#pragma once

#include "kernels/vector_math.hpp"

namespace kernels {
namespace {

constexpr int kTileRows = 6;                           // with kTileVectors: what 32 (16) registers hold
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;
constexpr int64_t kPanel = kTileVectors * kLanes;      // columns of a packed panel

KERNELS_INLINE int64_t lanes_up(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
KERNELS_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// B [k, n] is packed as panels of kPanel columns, the last one as wide as the rest of n rounded up to lanes, its
// columns past n zero. A panel lies row after row; panel p begins at p * kPanel * k.
KERNELS_INLINE int64_t packed_size(int64_t k, int64_t n) { return k * lanes_up(n); }

// packed B [k, n] from rows of n elements.
template <class T>
KERNELS_INLINE void pack_rows(float* out, const T* rows, int64_t stride, int64_t k, int64_t n) {
  for (int64_t j0 = 0; j0 < n; j0 += kPanel) {
    int64_t width = smaller(kPanel, lanes_up(n - j0)), there = smaller(kPanel, n - j0);
    float* panel = out + j0 * k;
    for (int64_t r = 0; r < k; ++r, panel += width) {
      const T* in = rows + r * stride + j0;
      int64_t j = 0;
      for (; j + kLanes <= there; j += kLanes) store(panel + j, load(in + j));
      if (j < there) store(panel + j, load_part(in + j, there - j));
    }
  }
}

KERNELS_INLINE __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
KERNELS_INLINE __m256 load8(const uint16_t* p) {
  __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
KERNELS_INLINE float load1(const float* p) { return *p; }
KERNELS_INLINE float load1(const uint16_t* p) { return __builtin_bit_cast(float, uint32_t(*p) << 16); }

// Eight rows of eight, transposed.
template <class T>
KERNELS_INLINE void transpose8(float* out, int64_t out_stride, const T* in, int64_t stride) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = load8(in + i * stride);
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

// packed B [k, n] from n rows of k elements: B is their transpose.
template <class T>
KERNELS_INLINE void pack_transposed(float* out, const T* rows, int64_t stride, int64_t k, int64_t n) {
  for (int64_t j0 = 0; j0 < n; j0 += kPanel) {
    int64_t width = smaller(kPanel, lanes_up(n - j0)), there = smaller(kPanel, n - j0);
    float* panel = out + j0 * k;
    int64_t j = 0;
    for (; j + 8 <= there; j += 8) {
      const T* in = rows + (j0 + j) * stride;
      int64_t d = 0;
      for (; d + 8 <= k; d += 8) transpose8(panel + d * width + j, width, in + d, stride);
      for (; d < k; ++d)
        for (int64_t i = 0; i < 8; ++i) panel[d * width + j + i] = load1(in + i * stride + d);
    }
    for (int64_t d = 0; d < k; ++d)
      for (int64_t i = j; i < width; ++i) panel[d * width + i] = i < there ? load1(rows + (j0 + i) * stride + d) : 0;
  }
}

// c[kTileRows, NV vectors] (+)= sum over t < k of a(i, t) * b[t, :]; a(i, t) = a[i * lda + t], Transposed: a[t * lda +
// i].
template <int NV, bool Transposed, bool Add>
KERNELS_INLINE void tile(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k) {
  V sum[kTileRows][NV];
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) sum[i][v] = Add ? load(c + i * ldc + v * kLanes) : zero();
  for (int64_t t = 0; t < k; ++t, b += ldb) {
    V row[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) row[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
      V x = broadcast(Transposed ? a[t * lda + i] : a[i * lda + t]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) sum[i][v] = fma(x, row[v], sum[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(c + i * ldc + v * kLanes, sum[i][v]);
}

// kTileRows rows of C: columns [0, used) of n, both multiples of kLanes, summed over t in [k_begin, k_end) of the k
// rows of the packed B. `a` is the element of t = 0.
template <bool Transposed, bool Add>
void strip(float* c, int64_t ldc, const float* a, int64_t lda, const float* packed, int64_t k, int64_t k_begin,
           int64_t k_end, int64_t used, int64_t n) {
  a += Transposed ? k_begin * lda : k_begin;
  for (int64_t j = 0; j < used; j += kPanel) {
    int64_t width = smaller(kPanel, n - j), count = k_end - k_begin;
    const float* b = packed + j * k + k_begin * width;
    switch (smaller(used - j, width) / kLanes) {
      case 1: tile<1, Transposed, Add>(c + j, ldc, a, lda, b, width, count); break;
      case 2: tile<2, Transposed, Add>(c + j, ldc, a, lda, b, width, count); break;
#ifdef KERNELS_AVX512
      case 3: tile<3, Transposed, Add>(c + j, ldc, a, lda, b, width, count); break;
      case 4: tile<4, Transposed, Add>(c + j, ldc, a, lda, b, width, count); break;
#endif
    }
  }
}

}  // namespace
}  // namespace kernels
