// SPDX-License-Identifier: Apache-2.0
// Loops over vectors in double, for evaluators whose numbers are exact. The order of each sum is
// fixed by the sizes alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/fused.hpp"

namespace eval {

// Returns the product of two vectors. Eight sums let the compiler use vector instructions; their
// order is fixed.
template <class A, class B>
double dot(const A* a, const B* b, int64_t n) {
  double sums[8] = {};
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8)
    for (int64_t k = 0; k < 8; ++k)
      sums[k] = base::fused(double(a[i + k]), double(b[i + k]), sums[k]);
  for (int64_t i = whole; i < n; ++i)
    sums[i - whole] = base::fused(double(a[i]), double(b[i]), sums[i - whole]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
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
