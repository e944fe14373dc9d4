// SPDX-License-Identifier: Apache-2.0
// Loops over vectors in double, for evaluators whose numbers are exact. The order of each sum is
// fixed by the sizes alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/fused.hpp"

namespace eval {

// Adds products of eight numbers, each to a sum of its own. Two loops of four are what compilers
// turn into vector instructions; one of eight they unroll into single numbers.
template <class A, class B>
inline void add_eight_products(const A* a, const B* b, double (&sums)[2][4]) {
#pragma GCC unroll 1
  for (int64_t k = 0; k < 4; ++k) sums[0][k] = base::fused(double(a[k]), double(b[k]), sums[0][k]);
#pragma GCC unroll 1
  for (int64_t k = 0; k < 4; ++k)
    sums[1][k] = base::fused(double(a[4 + k]), double(b[4 + k]), sums[1][k]);
}
inline double added(const double (&s)[2][4]) {
  return ((s[0][0] + s[0][1]) + (s[0][2] + s[0][3])) + ((s[1][0] + s[1][1]) + (s[1][2] + s[1][3]));
}

// Returns the product of two vectors. The order of its eight sums is fixed.
template <class A, class B>
double dot(const A* a, const B* b, int64_t n) {
  double sums[2][4] = {};
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) add_eight_products(a + i, b + i, sums);
  for (int64_t i = whole; i < n; ++i) {
    double& sum = sums[(i - whole) / 4][(i - whole) % 4];
    sum = base::fused(double(a[i]), double(b[i]), sum);
  }
  return added(sums);
}

// Writes dot() of each of kA vectors with each of kB vectors, to the bit: [kA, kB]. All vectors of
// a side lie one after the other. A number that is read takes part in several products, so this is
// some times as fast as dot().
template <int kA, int kB>
void dots(const double* a, const double* b, int64_t n, double* out) {
  double sums[kA][kB][2][4] = {};
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8)
#pragma GCC unroll 8
    for (int x = 0; x < kA; ++x)
#pragma GCC unroll 8
      for (int y = 0; y < kB; ++y) add_eight_products(a + x * n + i, b + y * n + i, sums[x][y]);
  for (int x = 0; x < kA; ++x)
    for (int y = 0; y < kB; ++y) {
      for (int64_t i = whole; i < n; ++i) {
        double& sum = sums[x][y][(i - whole) / 4][(i - whole) % 4];
        sum = base::fused(a[x * n + i], b[y * n + i], sum);
      }
      out[x * kB + y] = added(sums[x][y]);
    }
}

// y += factor * x
template <class X>
void add_scaled(double* y, double factor, const X* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = base::fused(factor, double(x[i]), y[i]);
}

// Calls f(begin, end) for ranges that cover [0, items), on `threads` threads. The result of an item
// may not depend on where its range begins. f may not throw.
template <class F>
void for_parts(int threads, int64_t items, const F& f) {
  const int64_t parts = std::min<int64_t>(threads, items);
#pragma omp parallel for num_threads(int(parts)) schedule(static) if (parts > 1)
  for (int64_t p = 0; p < parts; ++p) f(items * p / parts, items * (p + 1) / parts);
}

}  // namespace eval
