// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the memory bank.
#include "kernels/memory_bank.hpp"

#include <algorithm>
#include <cmath>

#include "base/fused.hpp"
#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/instruction_choice.hpp"
#include "kernels/l2_normalize.hpp"

namespace kernels {
namespace {

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  if (bits_are_portable()) {  // in order; the compiler chooses the lanes below
    for (int64_t i = 0; i < n; ++i) sum = base::fused(double(a[i]), double(b[i]), sum);
    return sum;
  }
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum = base::fused(double(a[i]), double(b[i]), sum);
  return sum;
}

// Returns the bank's row for row r and column c. All must exist.
template <class Args>
const float* bank_row(const Args& a, int64_t r, int64_t c) {
  const int64_t stride = a.index_stride ? a.index_stride : a.columns;
  const int64_t place = a.index.none() ? r : int64_t(a.index.i32()[r * stride + c]);
  return a.bank.f32() + place * a.width;
}
template <class Args>
void need_places(const Args& a) {
  if (a.index.none()) return;
  const int64_t stride = a.index_stride ? a.index_stride : a.columns;
  for (int64_t r = 0; r < a.rows; ++r)
    need_ids(a.op, a.index.i32() + r * stride, a.columns, 0, a.bank_rows);
}

}  // namespace

void run_cpu(const BankScores& a, Queue& queue) {
  need_places(a);
  const int64_t stride = a.stride ? a.stride : a.columns;
  for_ranges(queue, a.rows, a.rows * a.columns * a.width, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r)
      for (int64_t c = 0; c < a.columns; ++c)
        a.scores.f32()[r * stride + c] =
            float(double(a.scale) * dot(a.x.f32() + r * a.width, bank_row(a, r, c), a.width));
  });
}

void run_cpu(const BankGradient& a, Queue& queue) {
  need_places(a);
  const int64_t stride = a.stride ? a.stride : a.columns;
  auto* sums = static_cast<double*>(queue.scratch(size_t(a.dx.count) * sizeof(double)));
  for_ranges(queue, a.rows, a.rows * a.columns * a.width, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      double* sum = sums + r * a.width;
      std::fill(sum, sum + a.width, 0.0);
      for (int64_t c = 0; c < a.columns; ++c) {
        const double d = double(a.d.f32()[r * stride + c]);
        const float* row = bank_row(a, r, c);
#pragma omp simd
        for (int64_t i = 0; i < a.width; ++i) sum[i] = base::fused(d, double(row[i]), sum[i]);
      }
      float* out = a.dx.f32() + r * a.width;
      for (int64_t i = 0; i < a.width; ++i) {
        const float g = float(double(a.scale) * sum[i]);
        out[i] = a.write == Write::accumulate ? out[i] + g : g;
      }
    }
  });
}

void run_cpu(const BankUpdate& a, Queue& queue) {
  const int32_t* index = a.index.i32();
  need_ids(a.op, index, a.count, 0, a.bank_rows);
  const double keep = double(a.momentum);
  for_ranges(queue, a.count, a.count * std::max(a.width, a.count), 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      if (std::find(index + i + 1, index + a.count, index[i]) != index + a.count) continue;
      float* row = a.bank.f32() + int64_t(index[i]) * a.width;
      const float* x = a.x.f32() + i * a.width;
      double square = 0;
      for (int64_t k = 0; k < a.width; ++k) {
        row[k] = float(base::fused(keep, double(row[k]), (1 - keep) * double(x[k])));
        square = base::fused(double(row[k]), double(row[k]), square);
      }
      const double inverse = 1 / std::max(std::sqrt(square), double(kLeastLength));
      for (int64_t k = 0; k < a.width; ++k) row[k] = float(double(row[k]) * inverse);
    }
  });
}

}  // namespace kernels
