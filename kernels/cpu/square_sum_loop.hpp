// SPDX-License-Identifier: Apache-2.0
// The inner loops of all sums of squares, with sixteen lanes of double. The square of a float is
// exact in double. Only the optimizer's ops include this file.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/fused.hpp"

namespace kernels::loops {

using Float4 = float __attribute__((vector_size(16)));
using Double4 = double __attribute__((vector_size(32)));

// Returns a b + c, rounded once.
inline Double4 fused(Double4 a, Double4 b, Double4 c) {
  return Double4{base::fused(a[0], b[0], c[0]), base::fused(a[1], b[1], c[1]),
                 base::fused(a[2], b[2], c[2]), base::fused(a[3], b[3], c[3])};
}

inline double sum_of_lanes(const Double4 (&lane)[4]) {
  Double4 s = (lane[0] + lane[1]) + (lane[2] + lane[3]);
  return (s[0] + s[1]) + (s[2] + s[3]);
}

// Returns the sum of the squares of n floats.
inline double square_sum(const float* x, int64_t n) {
  Double4 lane[4] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < 4; ++k) {
      Float4 f;
      std::memcpy(&f, x + i + 4 * k, sizeof f);
      Double4 d = __builtin_convertvector(f, Double4);
      lane[k] = fused(d, d, lane[k]);
    }
  double rest = 0;
  for (; i < n; ++i) rest = base::fused(double(x[i]), double(x[i]), rest);
  return sum_of_lanes(lane) + rest;
}

// Returns the sum of the squares of x, and adds each square to columns[i].
inline double square_sum_columns(const float* x, double* columns, int64_t n) {
  Double4 lane[4] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < 4; ++k) {
      Float4 f;
      Double4 c;
      std::memcpy(&f, x + i + 4 * k, sizeof f);
      std::memcpy(&c, columns + i + 4 * k, sizeof c);
      Double4 d = __builtin_convertvector(f, Double4);
      c = fused(d, d, c);
      lane[k] = fused(d, d, lane[k]);
      std::memcpy(columns + i + 4 * k, &c, sizeof c);
    }
  double rest = 0;
  for (; i < n; ++i) {
    const double d = double(x[i]);
    columns[i] = base::fused(d, d, columns[i]);
    rest = base::fused(d, d, rest);
  }
  return sum_of_lanes(lane) + rest;
}

// Returns the sum of n doubles.
inline double plain_sum(const double* x, int64_t n) {
  Double4 lane[4] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < 4; ++k) {
      Double4 d;
      std::memcpy(&d, x + i + 4 * k, sizeof d);
      lane[k] += d;
    }
  double rest = 0;
  for (; i < n; ++i) rest += x[i];
  return sum_of_lanes(lane) + rest;
}

}  // namespace kernels::loops
