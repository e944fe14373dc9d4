// SPDX-License-Identifier: Apache-2.0
// Own elementary functions. Polynomials are Taylor's, unless a comment says otherwise, with as many
// terms as leave the rest below the rounding. Where rounding would add up, a number is a Pair.
#include "base/elementary.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/fused.hpp"
#include "base/own_log.hpp"

namespace base::math {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();

// Returns the sum of coefficients[k] x^k.
template <size_t kTerms>
inline double polynomial(const std::array<double, kTerms>& coefficients, double x) {
  double sum = coefficients[kTerms - 1];
  // Without a loop, so that a loop over x becomes vector code.
  [&]<size_t... k>(std::index_sequence<k...>) {
    ((sum = fused(sum, x, coefficients[kTerms - 2 - k])), ...);
  }
  (std::make_index_sequence<kTerms - 1>());
  return sum;
}

constexpr double kWhole = 0x1.8p52;  // its last bit counts 1

// Returns the nearest whole number; |x| < 2^51.
inline double nearest(double x) { return x + kWhole - kWhole; }

struct Pair {  // the number high + low; low is below the last bit of high
  double high, low;
};

inline Pair sum_of(double a, double b) {
  const double sum = a + b, part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}
inline Pair product_of(double a, double b) {
  const double product = a * b;
  return {product, fused(a, b, -product)};
}
inline Pair sum_of(Pair a, Pair b) {
  const Pair sum = sum_of(a.high, b.high);
  return sum_of(sum.high, sum.low + (a.low + b.low));
}
inline Pair product_of(Pair a, Pair b) {
  const Pair product = product_of(a.high, b.high);
  return sum_of(product.high, fused(a.high, b.low, fused(a.low, b.high, product.low)));
}
inline Pair quotient_of(Pair a, Pair b) {
  const double quotient = a.high / b.high,
               rest = fused(-quotient, b.high, a.high) + fused(-quotient, b.low, a.low);
  return sum_of(quotient, rest / b.high);
}

// Exponentials

// Returns 2^n for whole n from -1022 to 1023. No conversion to an integer is in the way of vectors.
inline double two_to(double n) {
  return std::bit_cast<double>((std::bit_cast<uint64_t>(n + kWhole) + 1023) << 52);
}

struct Exponential {
  Pair factor;  // from sqrt(1/2) to sqrt(2)
  double exponent;

  double rounded() const { return scaled(factor.high + factor.low); }
  // Two steps reach denormal results and the largest ones, and only the last step rounds.
  double scaled(double x) const {
    const double half = nearest(0.5 * exponent);
    return x * two_to(half) * two_to(exponent - half);
  }
};

constexpr std::array<double, 13> kExpTerms = [] {  // 1 / 2!, 1 / 3!, ...
  std::array<double, 13> out{};
  double factorial = 1;
  for (size_t k = 0; k < out.size(); ++k) out[k] = 1 / (factorial *= double(k + 2));
  return out;
}();

// Returns e^(x.high + x.low) for |x.high| < 800.
//   x = n ln 2 + r + c with |r| <= ln(2) / 2, and c below the last bit of r
//   e^(r + c) = 1 + r + r^2 p(r) + c (1 + r)
inline Exponential exponential(Pair x) {
  const double n = nearest(x.high * 1.44269504088896340736);
  const Pair part = product_of(n, kLn2Low);
  const Pair first = sum_of(fused(-n, kLn2High, x.high), -part.high),
             rest = sum_of(first.high, first.low - part.low + x.low);
  const double r = rest.high, c = rest.low;
  const double tail = fused(r, fused(r, polynomial(kExpTerms, r), c), c);
  const Pair lead = sum_of(1, r);
  return {{lead.high, lead.low + tail}, n};
}

// Logarithms

// Returns the natural logarithm of a positive finite number, to 1e-30 of it.
Pair log_pair(double x) {
  constexpr double kLn2Lowest = 1.1612227229362532e-26;
  const bool denormal = x < std::numeric_limits<double>::min();
  const SplitNumber parts = split_number(denormal ? x * 0x1p54 : x);
  const double n = denormal ? parts.exponent - 54 : parts.exponent;
  const Pair s = quotient_of({parts.fraction - 1, 0}, sum_of(parts.fraction, 1)),
             z = product_of(s, s);
  Pair sum{};  // z / 3 + z^2 / 5 + ...
  for (int i = 35; i >= 3; i -= 2)
    sum = product_of(z, sum_of(sum, quotient_of({1, 0}, {double(i), 0})));
  const Pair of_fraction = product_of({2 * s.high, 2 * s.low}, sum_of({1, 0}, sum)),
             low = product_of(n, kLn2Low);
  const Pair of_power = sum_of({n * kLn2High, 0}, {low.high, fused(n, kLn2Lowest, low.low)});
  return sum_of(of_power, of_fraction);
}

// Powers

bool is_whole(double y) { return std::floor(y) == y; }
bool is_odd(double y) { return is_whole(y) && std::abs(y) < 0x1p53 && int64_t(y) % 2 != 0; }

// Returns x^y for x > 0, and infinite or finite values apart from NaN.
double power(double x, double y) {
  if (x == 1) return 1;
  if (std::isinf(y)) return (x > 1) == (y > 0) ? kInfinity : 0;
  if (x == 0 || std::isinf(x)) return (x > 0) == (y > 0) ? kInfinity : 0;
  const Pair log = log_pair(x);
  const double high = y * log.high;
  if (high > 710) return kInfinity;
  if (high < -746) return 0;
  return exponential({high, fused(y, log.low, fused(y, log.high, -high))}).rounded();
}

// Circular functions

struct Angle {  // |x| = quarters pi / 2 + rest
  uint64_t quarters;
  Pair rest;  // at most pi / 4, apart from rounding
};

constexpr Pair kQuarter{1.5707963267948966, 6.123233995736766e-17};  // pi / 2
constexpr double kQuarterLowest = -1.4973849048591698e-33;

// The angle of x from 0 to 2^45. The first difference is exact.
Angle small_angle(double x) {
  const double n = nearest(x * 6.36619772367581382433e-01);
  const Pair part = product_of(n, kQuarter.low);
  const Pair rest = sum_of(fused(-n, kQuarter.high, x), -part.high);
  return {uint64_t(int64_t(n)), sum_of(rest.high, rest.low - fused(n, kQuarterLowest, part.low))};
}

// The bits of 2 / pi, after 64 zeros.
constexpr uint64_t kTwoOverPi[] = {
    0x0000000000000000ull, 0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull, 0xdb6295993c439041ull,
    0xfe5163abdebbc561ull, 0xb7246e3a424dd2e0ull, 0x06492eea09d1921cull, 0xfe1deb1cb129a73eull,
    0xe88235f52ebb4484ull, 0xe99c7026b45f7e41ull, 0x3991d639835339f4ull, 0x9c845f8bbdf9283bull,
    0x1ff897ffde05980full, 0xef2f118b5a0a6d1full, 0x6d367ecf27cb09b7ull, 0x4f463f669e5fea2dull,
    0x7527bac7ebe5f17bull, 0x3d0739f78a5292eaull, 0x6bfb5fb11f8d5d08ull, 0x56033046fc7b6babull,
    0xf0cfbc209af4361dull};

// The angle of larger numbers (Payne and Hanek). x = m 2^e; bits of 2 / pi that give whole turns
// are left out, and the 192 bits after them reach below the last bit of any rest.
Angle large_angle(double x) {
  __extension__ using Wide = unsigned __int128;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t m = (bits & 0xFFFFFFFFFFFFFull) | 0x10000000000000ull,
                 first = (bits >> 52) - 1075 + 62;
  auto word = [&](uint64_t i) {  // 64 bits from bit `first` + 64 i
    const uint64_t *w = kTwoOverPi + first / 64 + i, shift = first % 64;
    return shift == 0 ? w[0] : w[0] << shift | w[1] >> (64 - shift);
  };
  const Wide low = Wide(m) * word(2), middle = Wide(m) * word(1) + uint64_t(low >> 64);
  const uint64_t high = m * word(0) + uint64_t(middle >> 64);
  // high, middle, low are x / (pi / 2) modulo 4 in units of 2^-190. The rest is from -1/2 to 1/2.
  const uint64_t rest = high << 2 | uint64_t(middle) >> 62,
                 behind = uint64_t(middle) << 2 | uint64_t(low) >> 62;
  const Pair lead = sum_of(double(int64_t(rest) >> 32) * 0x1p-32, double(uint32_t(rest)) * 0x1p-64);
  const Pair turn = sum_of(lead, {double(behind >> 11) * 0x1p-117, 0});
  return {(high >> 62) + (rest >> 63), product_of(turn, kQuarter)};
}

Angle angle_of(double x) { return x < 0x1p45 ? small_angle(x) : large_angle(x); }

// Returns the signed terms (-1)^k / (2 k + first)!, from k = 0.
constexpr std::array<double, 8> circular_terms(int first) {
  std::array<double, 8> out{};
  double factorial = 1;
  for (int i = 2; i <= first; ++i) factorial *= i;
  for (size_t k = 0; k < out.size(); ++k) {
    out[k] = (k % 2 ? 1 : -1) / factorial;
    const double last = double(first) + 2 * double(k);
    factorial *= (last + 1) * (last + 2);
  }
  return out;
}
constexpr std::array<double, 8> kSinTerms = circular_terms(3), kCosTerms = circular_terms(4);

double sin_within(Pair x) {
  const double r = x.high, z = r * r;
  return r + fused(z * r, polynomial(kSinTerms, z), fused(-0.5 * z, x.low, x.low));
}

double cos_within(Pair x) {
  const double r = x.high, z = r * r, half = 0.5 * z;
  const Pair lead = sum_of(1, -half);
  return lead.high + (lead.low + fused(z * z, -polynomial(kCosTerms, z), -r * x.low));
}

// Returns the sine of |x| after `more` quarters of a turn.
double circular(double x, uint64_t more) {
  if (!std::isfinite(x)) return kNan;
  const Angle angle = angle_of(std::abs(x));
  const uint64_t quarters = angle.quarters + more;
  const double value = quarters % 2 == 0 ? sin_within(angle.rest) : cos_within(angle.rest);
  return quarters & 2 ? -value : value;
}

// The error function

// 2 / sqrt(pi), and the terms after the first of erf(x) / x, in powers of x^2.
constexpr Pair kErfSlope{1.1283791670955126, 1.533545961316588e-17};
constexpr std::array<double, 18> kErfTerms = [] {
  std::array<double, 18> out{};
  double factorial = 1;
  for (size_t k = 0; k < out.size(); ++k) {
    factorial *= -double(k + 1);
    out[k] = kErfSlope.high / (factorial * (2 * double(k) + 3));
  }
  return out;
}();

// erf for |x| <= 1
inline double erf_within(double x) {
  const double z = x * x;
  return fused(x, kErfSlope.high, x * fused(z, polynomial(kErfTerms, z), kErfSlope.low));
}

// e^(x^2) erfc(x) (1 + 2 x) in powers of t = (x - 4) / (x + 4), for x from 1/4 to 28. The
// polynomial interpolates at 23 Chebyshev nodes; its largest relative error is 3e-18.
constexpr double kErfcFirst = 0x1.3ba5916e9fd7fp+0;
constexpr std::array<double, 22> kErfcTerms = {  // the others
    -0x1.1df1ad154a28fp-3,  0x1.f7f5df66fd497p-7,   0x1.16ecefcfa54b0p-4,   -0x1.9ddb23c3e76d4p-4,
    0x1.7fee004e0fd45p-4,   -0x1.0fb06dfe7374dp-4,  0x1.3079edf6d0eecp-5,   -0x1.0962387c421ddp-6,
    0x1.49c67273177bdp-8,   -0x1.8d4aa28967097p-11, -0x1.a1df1c6c55fc6p-13, 0x1.3be0e68166234p-13,
    -0x1.99597cd9bde23p-16, -0x1.78a60cbe4e1a0p-17, 0x1.7f1f8bfdf220dp-18,  0x1.4209a1dcca76ep-22,
    -0x1.b9da3ae0173d7p-21, 0x1.1ecd3221ee53dp-24,  0x1.c7573d1f17510p-24,  -0x1.a27397ef8e306p-27,
    -0x1.6b9b31cb90e93p-27, 0x1.7e7b507fe68bbp-36};

// erfc for x from 1/4 to 28
inline double erfc_above(double x) {
  const Pair square = product_of(x, x);
  const Exponential e = exponential({-square.high, -square.low});
  const double t = (x - 4) / (x + 4);
  const Pair lead = product_of(polynomial(kErfcTerms, t), t);
  const Pair value = sum_of({kErfcFirst, 0}, lead);
  const Pair quotient = quotient_of(product_of(e.factor, value), sum_of(1, 2 * x));
  return e.scaled(quotient.high + quotient.low);
}

// Whole functions, with special values as in C

double own_exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 710) return kInfinity;
  return x < -746 ? 0 : exponential({x, 0}).rounded();
}

double own_log_of_any(double x) {
  if (std::isnan(x) || x == kInfinity) return x;
  if (x <= 0) return x == 0 ? -kInfinity : kNan;
  if (x >= std::numeric_limits<double>::min()) return own_log(x);
  return log_pair(x).high;
}

double own_log1p(double x) {
  if (std::isnan(x) || x == kInfinity || x == 0) return x;
  if (x <= -1) return x == -1 ? -kInfinity : kNan;
  const Pair sum = sum_of(1, x);
  return own_log(sum.high) + sum.low / sum.high;
}

double own_pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  if (std::isnan(x) || std::isnan(y)) return kNan;
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && !is_whole(y)) return kNan;
  const double value = power(std::abs(x), y);
  return std::signbit(x) && is_odd(y) ? -value : value;
}

double own_sin(double x) {
  if (x == 0) return x;
  const double value = circular(x, 0);
  return x < 0 ? -value : value;
}

double own_cos(double x) { return circular(x, 1); }

double own_erf(double x) {
  if (std::isnan(x)) return x;
  const double size = std::abs(x);
  if (size <= 1) return erf_within(x);
  return std::copysign(size >= 6 ? 1 : 1 - erfc_above(size), x);
}

double own_erfc(double x) {
  if (std::isnan(x)) return x;
  if (x > 28) return 0;
  if (x >= 0.25) return erfc_above(x);
  return 1 - own_erf(x);
}

template <double (*kOf)(double)>
float in_double(float x) {
  return float(kOf(double(x)));
}

// Functions of many floats. They do what own_exp and own_erf do, but choose between results instead
// of branches, and contain all that they call, so that compilers make vector code of them.

[[gnu::flatten]] void own_exp_of_floats(float* y, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = double(x[i]), low = v < -746 ? -746 : v, within = low > 709 ? 709 : low;
    const double value = exponential({within, 0}).rounded();
    y[i] = float(std::isnan(v) ? v : value);
  }
}

[[gnu::flatten]] void own_erf_of_floats(float* y, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double v = double(x[i]), size = std::abs(v), above = size < 1 ? 1 : size,
                 between = above > 6 ? 6 : above;
    const double far = size >= 6 ? 1 : 1 - erfc_above(between);
    const double value = size <= 1 ? erf_within(v) : std::copysign(far, v);
    y[i] = float(std::isnan(v) ? v : value);
  }
}

// The functions of the C library, one number at a time.
template <float (*kOf)(float)>
void one_by_one(float* y, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = kOf(x[i]);
}

}  // namespace

const Functions kLibrary = {std::exp,
                            std::log,
                            std::log1p,
                            std::pow,
                            std::sin,
                            std::cos,
                            std::erf,
                            std::erfc,
                            std::exp,
                            std::log,
                            std::sin,
                            std::erf,
                            one_by_one<std::exp>,
                            one_by_one<std::erf>};
const Functions kOwn = {own_exp,
                        own_log_of_any,
                        own_log1p,
                        own_pow,
                        own_sin,
                        own_cos,
                        own_erf,
                        own_erfc,
                        in_double<own_exp>,
                        in_double<own_log_of_any>,
                        in_double<own_sin>,
                        in_double<own_erf>,
                        own_exp_of_floats,
                        own_erf_of_floats};

}  // namespace base::math
