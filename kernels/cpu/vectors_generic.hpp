// SPDX-License-Identifier: Apache-2.0
// Vectors of eight floats in plain C++, for CPUs without AVX2: two halves of 128 bits, as wide as
// the registers of Arm's NEON. Each function has the same meaning and gives the same bits as the
// function for AVX2. vector_math.hpp explains how this file is compiled.
#pragma once

#include <cstdint>

#ifdef __ARM_NEON
#include <arm_neon.h>
#endif

#include "kernels/cpu/vector_inline.hpp"

namespace kernels {
namespace {
namespace eight {

constexpr int kLanes = 8;
using Floats4 = float __attribute__((vector_size(16)));
using Words4 = uint32_t __attribute__((vector_size(16)));
using Doubles2 = double __attribute__((vector_size(16)));

struct V {
  Floats4 low, high;
};
struct Words {  // 32-bit lanes
  Words4 low, high;
};
struct Doubles {  // as many bits as V, so half as many numbers
  Doubles2 low, high;
};

KERNELS_INLINE V operator+(V a, V b) { return {a.low + b.low, a.high + b.high}; }
KERNELS_INLINE V operator-(V a, V b) { return {a.low - b.low, a.high - b.high}; }
KERNELS_INLINE V operator*(V a, V b) { return {a.low * b.low, a.high * b.high}; }
KERNELS_INLINE V operator/(V a, V b) { return {a.low / b.low, a.high / b.high}; }
KERNELS_INLINE V operator-(V a) { return {-a.low, -a.high}; }
KERNELS_INLINE Doubles operator+(Doubles a, Doubles b) { return {a.low + b.low, a.high + b.high}; }

KERNELS_INLINE V value_of(Words a) { return __builtin_bit_cast(V, a); }
KERNELS_INLINE Words word_of(V a) { return __builtin_bit_cast(Words, a); }

template <class To, class From>
KERNELS_INLINE To load_as(const From* p) {
  To out;
  __builtin_memcpy(&out, p, sizeof out);
  return out;
}

KERNELS_INLINE V load(const float* p) { return load_as<V>(p); }
KERNELS_INLINE void store(float* p, V a) { __builtin_memcpy(p, &a, sizeof a); }
// Stores past the caches, where the CPU can.
KERNELS_INLINE void stream(float* p, V a) { store(p, a); }

KERNELS_INLINE Words words(uint32_t a) { return {Words4{a, a, a, a}, Words4{a, a, a, a}}; }
KERNELS_INLINE Words load_words(const uint32_t* p) { return load_as<Words>(p); }
KERNELS_INLINE void store_words(uint32_t* p, Words a) { __builtin_memcpy(p, &a, sizeof a); }

using Shorts4 = uint16_t __attribute__((vector_size(8)));
using Bytes4 = uint8_t __attribute__((vector_size(4)));
KERNELS_INLINE Words load_bits(const uint16_t* p) {
  return {__builtin_convertvector(load_as<Shorts4>(p), Words4),
          __builtin_convertvector(load_as<Shorts4>(p + 4), Words4)};
}
KERNELS_INLINE Words load_bytes(const uint8_t* p) {
  return {__builtin_convertvector(load_as<Bytes4>(p), Words4),
          __builtin_convertvector(load_as<Bytes4>(p + 4), Words4)};
}
// Stores the low byte of each lane.
KERNELS_INLINE void store_bytes(uint8_t* p, Words a) {
  const Bytes4 low = __builtin_convertvector(a.low, Bytes4),
               high = __builtin_convertvector(a.high, Bytes4);
  __builtin_memcpy(p, &low, sizeof low);
  __builtin_memcpy(p + 4, &high, sizeof high);
}

KERNELS_INLINE Words add(Words a, Words b) { return {a.low + b.low, a.high + b.high}; }
KERNELS_INLINE Words exclusive_or(Words a, Words b) { return {a.low ^ b.low, a.high ^ b.high}; }
KERNELS_INLINE Words pairs_of(Words first, Words second) {
  return {first.low | second.low << 16, first.high | second.high << 16};
}
KERNELS_INLINE V value_of_bits(Words a) { return value_of({a.low << 16, a.high << 16}); }
KERNELS_INLINE V load(const uint16_t* p) { return value_of_bits(load_bits(p)); }  // bfloat16

// Returns `value` in lanes of all ones, else 0. A comparison of vectors gives such lanes.
template <class Mask>
KERNELS_INLINE Floats4 only(Mask where, Floats4 value) {
  return Floats4(Words4(where) & Words4(value));
}
template <class Mask>
KERNELS_INLINE Words4 chosen(Mask where, Words4 yes, Words4 no) {
  return (Words4(where) & yes) | (~Words4(where) & no);
}
template <class Mask>
KERNELS_INLINE Floats4 chosen(Mask where, Floats4 yes, Floats4 no) {
  return Floats4(chosen(where, Words4(yes), Words4(no)));
}

// Returns the bits of the nearest bfloat16, ties to even. NaN becomes 0x7FC0, as in bf16_value.hpp.
KERNELS_INLINE Words4 bf16_bits(Floats4 a) {
  const Words4 u = Words4(a), rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  return chosen(a != a, Words4{0x7FC0, 0x7FC0, 0x7FC0, 0x7FC0}, rounded);
}
KERNELS_INLINE Words bf16_bits(V a) { return {bf16_bits(a.low), bf16_bits(a.high)}; }
KERNELS_INLINE void store(uint16_t* p, V a) {
  const Words bits = bf16_bits(a);
  const Shorts4 low = __builtin_convertvector(bits.low, Shorts4),
                high = __builtin_convertvector(bits.high, Shorts4);
  __builtin_memcpy(p, &low, sizeof low);
  __builtin_memcpy(p + 4, &high, sizeof high);
}
KERNELS_INLINE void stream(uint16_t* p, V a) { store(p, a); }

KERNELS_INLINE V load_part(const float* p, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
KERNELS_INLINE void store_part(float* p, V a, int64_t n) {
  float lanes[kLanes];
  store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
// Replaces lanes from n on by `fill`.
KERNELS_INLINE V keep_first(V a, int64_t n, V fill) {
  const uint32_t first = uint32_t(n);
  return {chosen(Words4{0, 1, 2, 3} < first, a.low, fill.low),
          chosen(Words4{4, 5, 6, 7} < first, a.high, fill.high)};
}
KERNELS_INLINE V broadcast(float a) { return {Floats4{a, a, a, a}, Floats4{a, a, a, a}}; }

#ifdef __ARM_NEON
KERNELS_INLINE Floats4 fma(Floats4 a, Floats4 b, Floats4 c) { return vfmaq_f32(c, a, b); }
KERNELS_INLINE Doubles2 fma(Doubles2 a, Doubles2 b, Doubles2 c) { return vfmaq_f64(c, a, b); }
#else
KERNELS_INLINE Floats4 fma(Floats4 a, Floats4 b, Floats4 c) {
  return Floats4{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                 __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
KERNELS_INLINE Doubles2 fma(Doubles2 a, Doubles2 b, Doubles2 c) {
  return Doubles2{__builtin_fma(a[0], b[0], c[0]), __builtin_fma(a[1], b[1], c[1])};
}
#endif
KERNELS_INLINE V fma(V a, V b, V c) {
  return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}
// Returns c - a b, rounded once.
KERNELS_INLINE V less_product(V c, V a, V b) { return fma(-a, b, c); }
KERNELS_INLINE Doubles fma(Doubles a, Doubles b, Doubles c) {
  return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}
KERNELS_INLINE V max(V a, V b) {  // b if either is NaN
  return {chosen(a.low > b.low, a.low, b.low), chosen(a.high > b.high, a.high, b.high)};
}
KERNELS_INLINE V min(V a, V b) {  // b if either is NaN
  return {chosen(a.low < b.low, a.low, b.low), chosen(a.high < b.high, a.high, b.high)};
}
// Returns 0 in lanes where x < bound, else `value`, also where x is NaN.
KERNELS_INLINE V where_not_less(V x, V bound, V value) {
  return {only(~(x.low < bound.low), value.low), only(~(x.high < bound.high), value.high)};
}
// Returns 0 in lanes where x <= bound, else `value`, also where x is NaN.
KERNELS_INLINE V where_above(V x, V bound, V value) {
  return {only(~(x.low <= bound.low), value.low), only(~(x.high <= bound.high), value.high)};
}
// Returns 0 in lanes where a and b differ.
KERNELS_INLINE V where_equal(Words a, Words b, V value) {
  return {only(a.low == b.low, value.low), only(a.high == b.high, value.high)};
}
// Takes v and its place in lanes where v is larger than the best value, or NaN.
KERNELS_INLINE void meet(V v, Words here, V& best, Words& place) {
  const auto low = (v.low > best.low) | (v.low != v.low),
             high = (v.high > best.high) | (v.high != v.high);
  best = {chosen(low, v.low, best.low), chosen(high, v.high, best.high)};
  place = {chosen(low, here.low, place.low), chosen(high, here.high, place.high)};
}

// Returns 1 in lanes where sum = x + addend wrapped around, else 0.
KERNELS_INLINE Words carry_of_add(Words sum, Words addend) {
  return {Words4(sum.low < addend.low) & 1u, Words4(sum.high < addend.high) & 1u};
}
KERNELS_INLINE void multiply_wide(Words4 a, Words4 b, Words4& low, Words4& high) {
  const uint64_t p[4] = {uint64_t{a[0]} * b[0], uint64_t{a[1]} * b[1], uint64_t{a[2]} * b[2],
                         uint64_t{a[3]} * b[3]};
  low = Words4{uint32_t(p[0]), uint32_t(p[1]), uint32_t(p[2]), uint32_t(p[3])};
  high = Words4{uint32_t(p[0] >> 32), uint32_t(p[1] >> 32), uint32_t(p[2] >> 32),
                uint32_t(p[3] >> 32)};
}
KERNELS_INLINE void multiply_wide(Words a, Words b, Words& low, Words& high) {
  multiply_wide(a.low, b.low, low.low, high.low);
  multiply_wide(a.high, b.high, low.high, high.high);
}
// Returns the uniform numbers that base::Stream::uniform makes of these bits.
KERNELS_INLINE V uniform_of(Words bits) {
  return {__builtin_convertvector(bits.low >> 8, Floats4) * 0x1p-24f,
          __builtin_convertvector(bits.high >> 8, Floats4) * 0x1p-24f};
}
// Returns a * 2^n for t = n + 1.5 * 2^23, by adding n to the exponent. The result must be normal.
KERNELS_INLINE V add_to_exponent(V a, V t) {
  const Words u = word_of(a), n = word_of(t);
  return value_of({u.low + (n.low << 23), u.high + (n.high << 23)});
}

// Interleaves lanes, or pairs of lanes, within each half: a0 b0 a1 b1, or a2 b2 a3 b3.
KERNELS_INLINE Words4 zip32_low(Words4 a, Words4 b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
KERNELS_INLINE Words4 zip32_high(Words4 a, Words4 b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
KERNELS_INLINE Words4 zip64_low(Words4 a, Words4 b) {
  return __builtin_shufflevector(a, b, 0, 1, 4, 5);
}
KERNELS_INLINE Words4 zip64_high(Words4 a, Words4 b) {
  return __builtin_shufflevector(a, b, 2, 3, 6, 7);
}
KERNELS_INLINE Words zip32_low(Words a, Words b) {
  return {zip32_low(a.low, b.low), zip32_low(a.high, b.high)};
}
KERNELS_INLINE Words zip32_high(Words a, Words b) {
  return {zip32_high(a.low, b.low), zip32_high(a.high, b.high)};
}
KERNELS_INLINE Words zip64_low(Words a, Words b) {
  return {zip64_low(a.low, b.low), zip64_low(a.high, b.high)};
}
KERNELS_INLINE Words zip64_high(Words a, Words b) {
  return {zip64_high(a.low, b.low), zip64_high(a.high, b.high)};
}

KERNELS_INLINE Doubles doubles_of(Floats4 a) {
  return {Doubles2{double(a[0]), double(a[1])}, Doubles2{double(a[2]), double(a[3])}};
}
KERNELS_INLINE Doubles low_doubles(V a) { return doubles_of(a.low); }
KERNELS_INLINE Doubles high_doubles(V a) { return doubles_of(a.high); }
KERNELS_INLINE Doubles load_doubles(const double* p) { return load_as<Doubles>(p); }
KERNELS_INLINE void store_doubles(double* p, Doubles a) { __builtin_memcpy(p, &a, sizeof a); }

// Adds in a fixed tree.
KERNELS_INLINE float sum_of(V a) {
  const Floats4 s = a.low + a.high;
  return (s[0] + s[2]) + (s[1] + s[3]);
}
KERNELS_INLINE float larger(float a, float b) { return a > b ? a : b; }  // b if either is NaN
KERNELS_INLINE float largest_of(V a) {
  const V swapped{a.high, a.high};
  const Floats4 m = max(a, swapped).low;
  return larger(larger(m[0], m[2]), larger(m[1], m[3]));
}

// Transposes eight rows of eight floats (or words); at(i) is the address of row i.
template <class At>
KERNELS_INLINE void transpose8_of(float* out, int64_t out_stride, const At& at) {
  Words4 r[8][2];
  for (int i = 0; i < 8; ++i) {
    const Words row = word_of(load(at(i)));
    r[i][0] = row.low;
    r[i][1] = row.high;
  }
  for (int half = 0; half < 2; ++half)
    for (int first = 0; first < 8; first += 4) {
      const Words4 a = zip32_low(r[first][half], r[first + 1][half]),
                   b = zip32_high(r[first][half], r[first + 1][half]),
                   c = zip32_low(r[first + 2][half], r[first + 3][half]),
                   d = zip32_high(r[first + 2][half], r[first + 3][half]);
      const Words4 columns[4] = {zip64_low(a, c), zip64_high(a, c), zip64_low(b, d),
                                 zip64_high(b, d)};
      for (int i = 0; i < 4; ++i)
        __builtin_memcpy(out + (half * 4 + i) * out_stride + first, &columns[i], sizeof columns[i]);
    }
}
template <class T>
KERNELS_INLINE void transpose8(float* out, int64_t out_stride, const T* in, int64_t stride) {
  transpose8_of(out, out_stride, [=](int i) { return in + i * stride; });
}

// Orders stores past the caches before all later ones.
KERNELS_INLINE void end_streams() {}

}  // namespace eight
}  // namespace
}  // namespace kernels
