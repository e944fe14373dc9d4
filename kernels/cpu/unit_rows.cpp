// SPDX-License-Identifier: Apache-2.0
// CPU implementation of rows of unit length.
#include "kernels/unit_rows.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/square_sum_loop.hpp"

namespace kernels {
namespace {

// Calls f(row, first, n) for each row that the elements [begin, begin + count) touch: its part of n
// elements begins at element `first` of the view.
template <class F>
void for_rows(const Queue& queue, int64_t begin, int64_t count, int64_t width, const F& f) {
  if (count == 0) return;
  const int64_t first_row = begin / width, rows = (begin + count - 1) / width - first_row + 1;
  for_ranges(queue, rows, count, 1, [&](int64_t from, int64_t to) {
    for (int64_t row = first_row + from; row < first_row + to; ++row) {
      const int64_t first = std::max(begin, row * width),
                    last = std::min(begin + count, (row + 1) * width);
      f(row, first - begin, last - first);
    }
  });
}

}  // namespace

void run_cpu(const RowSquares& a, Queue& queue) {
  double* sums = a.sums.f64();
  const float* x = a.x.f32();
  for_rows(queue, a.begin, a.x.count, a.width, [&](int64_t row, int64_t first, int64_t n) {
    sums[row] = loops::square_sum(x + first, n);
  });
}

void run_cpu(const UnitRows& a, Queue& queue) {
  if (!a.decided.none() && a.decided.f32()[2] == 0) return;
  const double* sums = a.sums.f64();
  float* x = a.x.f32();
  for_rows(queue, a.begin, a.x.count, a.width, [&](int64_t row, int64_t first, int64_t n) {
    const auto norm = float(std::max(std::sqrt(sums[row]), kLeastRowNorm));
#pragma omp simd
    for (int64_t i = first; i < first + n; ++i) x[i] /= norm;
  });
}

}  // namespace kernels
