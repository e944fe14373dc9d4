// SPDX-License-Identifier: Apache-2.0
// Vectors of 16 floats made of two vectors of eight. Each function gives the same bits as the
// function for AVX-512. vector_math.hpp explains how this file is compiled, and vectors_generic.hpp
// has the same functions with their meaning.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector_inline.hpp"

namespace kernels {
namespace {

constexpr int kLanes = 16;
struct V {
  eight::V low, high;
};
struct Words {
  eight::Words low, high;
};
struct Doubles {  // eight numbers
  eight::Doubles low, high;
};

KERNELS_INLINE V operator+(V a, V b) { return {a.low + b.low, a.high + b.high}; }
KERNELS_INLINE V operator-(V a, V b) { return {a.low - b.low, a.high - b.high}; }
KERNELS_INLINE V operator*(V a, V b) { return {a.low * b.low, a.high * b.high}; }
KERNELS_INLINE V operator/(V a, V b) { return {a.low / b.low, a.high / b.high}; }
KERNELS_INLINE V operator-(V a) { return {-a.low, -a.high}; }
KERNELS_INLINE Doubles operator+(Doubles a, Doubles b) { return {a.low + b.low, a.high + b.high}; }

template <class T>
KERNELS_INLINE V load(const T* p) {
  return {eight::load(p), eight::load(p + 8)};
}
template <class T>
KERNELS_INLINE void store(T* p, V a) {
  eight::store(p, a.low);
  eight::store(p + 8, a.high);
}
template <class T>
KERNELS_INLINE void stream(T* p, V a) {
  eight::stream(p, a.low);
  eight::stream(p + 8, a.high);
}
KERNELS_INLINE int64_t lanes_of_low(int64_t n) { return n < 8 ? n : 8; }
KERNELS_INLINE int64_t lanes_of_high(int64_t n) { return n < 8 ? 0 : n - 8; }
KERNELS_INLINE V load_part(const float* p, int64_t n) {
  return {eight::load_part(p, lanes_of_low(n)), eight::load_part(p + 8, lanes_of_high(n))};
}
KERNELS_INLINE void store_part(float* p, V a, int64_t n) {
  eight::store_part(p, a.low, lanes_of_low(n));
  eight::store_part(p + 8, a.high, lanes_of_high(n));
}
KERNELS_INLINE V keep_first(V a, int64_t n, V fill) {
  return {eight::keep_first(a.low, lanes_of_low(n), fill.low),
          eight::keep_first(a.high, lanes_of_high(n), fill.high)};
}
KERNELS_INLINE V broadcast(float a) { return {eight::broadcast(a), eight::broadcast(a)}; }
KERNELS_INLINE V fma(V a, V b, V c) {
  return {eight::fma(a.low, b.low, c.low), eight::fma(a.high, b.high, c.high)};
}
KERNELS_INLINE V less_product(V c, V a, V b) {
  return {eight::less_product(c.low, a.low, b.low), eight::less_product(c.high, a.high, b.high)};
}
KERNELS_INLINE V max(V a, V b) { return {eight::max(a.low, b.low), eight::max(a.high, b.high)}; }
KERNELS_INLINE V min(V a, V b) { return {eight::min(a.low, b.low), eight::min(a.high, b.high)}; }
KERNELS_INLINE V where_not_less(V x, V bound, V value) {
  return {eight::where_not_less(x.low, bound.low, value.low),
          eight::where_not_less(x.high, bound.high, value.high)};
}
KERNELS_INLINE V where_above(V x, V bound, V value) {
  return {eight::where_above(x.low, bound.low, value.low),
          eight::where_above(x.high, bound.high, value.high)};
}

KERNELS_INLINE Words bf16_bits(V a) { return {eight::bf16_bits(a.low), eight::bf16_bits(a.high)}; }
KERNELS_INLINE Words words(uint32_t a) { return {eight::words(a), eight::words(a)}; }
KERNELS_INLINE Words load_words(const uint32_t* p) {
  return {eight::load_words(p), eight::load_words(p + 8)};
}
KERNELS_INLINE void store_words(uint32_t* p, Words a) {
  eight::store_words(p, a.low);
  eight::store_words(p + 8, a.high);
}
KERNELS_INLINE Words load_bits(const uint16_t* p) {
  return {eight::load_bits(p), eight::load_bits(p + 8)};
}
KERNELS_INLINE Words pairs_of(Words first, Words second) {
  return {eight::pairs_of(first.low, second.low), eight::pairs_of(first.high, second.high)};
}
KERNELS_INLINE V value_of_bits(Words a) {
  return {eight::value_of_bits(a.low), eight::value_of_bits(a.high)};
}
KERNELS_INLINE Words add(Words a, Words b) {
  return {eight::add(a.low, b.low), eight::add(a.high, b.high)};
}
KERNELS_INLINE Words exclusive_or(Words a, Words b) {
  return {eight::exclusive_or(a.low, b.low), eight::exclusive_or(a.high, b.high)};
}
KERNELS_INLINE Words carry_of_add(Words sum, Words addend) {
  return {eight::carry_of_add(sum.low, addend.low), eight::carry_of_add(sum.high, addend.high)};
}
KERNELS_INLINE void multiply_wide(Words a, Words b, Words& low, Words& high) {
  eight::multiply_wide(a.low, b.low, low.low, high.low);
  eight::multiply_wide(a.high, b.high, low.high, high.high);
}
KERNELS_INLINE V uniform_of(Words bits) {
  return {eight::uniform_of(bits.low), eight::uniform_of(bits.high)};
}
KERNELS_INLINE V add_to_exponent(V a, V t) {
  return {eight::add_to_exponent(a.low, t.low), eight::add_to_exponent(a.high, t.high)};
}
KERNELS_INLINE Words zip32_low(Words a, Words b) {
  return {eight::zip32_low(a.low, b.low), eight::zip32_low(a.high, b.high)};
}
KERNELS_INLINE Words zip32_high(Words a, Words b) {
  return {eight::zip32_high(a.low, b.low), eight::zip32_high(a.high, b.high)};
}
KERNELS_INLINE Words zip64_low(Words a, Words b) {
  return {eight::zip64_low(a.low, b.low), eight::zip64_low(a.high, b.high)};
}
KERNELS_INLINE Words zip64_high(Words a, Words b) {
  return {eight::zip64_high(a.low, b.low), eight::zip64_high(a.high, b.high)};
}

KERNELS_INLINE void meet(V v, Words here, V& best, Words& place) {
  eight::meet(v.low, here.low, best.low, place.low);
  eight::meet(v.high, here.high, best.high, place.high);
}
KERNELS_INLINE V where_equal(Words a, Words b, V value) {
  return {eight::where_equal(a.low, b.low, value.low),
          eight::where_equal(a.high, b.high, value.high)};
}
KERNELS_INLINE Words load_bytes(const uint8_t* p) {
  return {eight::load_bytes(p), eight::load_bytes(p + 8)};
}
KERNELS_INLINE void store_bytes(uint8_t* p, Words a) {
  eight::store_bytes(p, a.low);
  eight::store_bytes(p + 8, a.high);
}

KERNELS_INLINE Doubles low_doubles(V a) {
  return {eight::low_doubles(a.low), eight::high_doubles(a.low)};
}
KERNELS_INLINE Doubles high_doubles(V a) {
  return {eight::low_doubles(a.high), eight::high_doubles(a.high)};
}
KERNELS_INLINE Doubles load_doubles(const double* p) {
  return {eight::load_doubles(p), eight::load_doubles(p + 4)};
}
KERNELS_INLINE void store_doubles(double* p, Doubles a) {
  eight::store_doubles(p, a.low);
  eight::store_doubles(p + 4, a.high);
}
KERNELS_INLINE Doubles fma(Doubles a, Doubles b, Doubles c) {
  return {eight::fma(a.low, b.low, c.low), eight::fma(a.high, b.high, c.high)};
}

// AVX-512 adds its halves first as well.
KERNELS_INLINE float sum_of(V a) { return eight::sum_of(a.low + a.high); }
KERNELS_INLINE float largest_of(V a) { return eight::largest_of(eight::max(a.low, a.high)); }

#ifdef KERNELS_GENERIC
using eight::end_streams;
using eight::transpose8;
using eight::transpose8_of;
#endif

}  // namespace
}  // namespace kernels
