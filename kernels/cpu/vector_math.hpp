// SPDX-License-Identifier: Apache-2.0
// Vectors of floats as wide as the instruction set allows, and vector functions that libm lacks.
// This file is compiled once per instruction set: vector_generic.cpp, vector_avx2.cpp and
// vector_avx512*.cpp include it, the last ones after a `#pragma GCC target`. Everything here has
// internal linkage, because no AVX-512 code may reach the linker under a name that other files
// share. For the same reason this file includes no standard header with inline functions; the .cpp
// files include those first. vectors_generic.hpp has the vectors in plain C++, with the meaning of
// each function; vectors_avx2.hpp and vectors_avx512.hpp have the same functions in intrinsics.
//
// Sums over lanes depend on the number of lanes. Tables whose bits must not depend on the CPU have
// 16 lanes everywhere: vectors_wide.hpp makes them of two narrow vectors. The compiler fuses no
// product with a sum in these files (CMakeLists.txt), so a fused operation is written as fma. Sizes
// of tiles may depend on the registers only where each output is one chain of operations.
#pragma once

#include <cstdint>

#if defined(KERNELS_AVX512)
#include "kernels/cpu/vectors_avx512.hpp"
#elif defined(KERNELS_GENERIC)
#include "kernels/cpu/vectors_generic.hpp"
#else
#include "kernels/cpu/vectors_avx2.hpp"
#endif
#ifdef KERNELS_WIDE
#include "kernels/cpu/vectors_wide.hpp"
#endif

namespace kernels {
namespace {

#ifdef KERNELS_AVX512
constexpr bool kManyRegisters = true;  // 32 of 16 floats
#else
constexpr bool kManyRegisters = false;  // 16 of 8 floats, or 32 of 4
#ifndef KERNELS_WIDE
using namespace eight;
#endif
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

// exp for any x, which is first clamped to [-86, 87]. NaN stays NaN.
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
