// SPDX-License-Identifier: Apache-2.0
// CPU implementation of Sinkhorn's assignment.
#include "kernels/sinkhorn.hpp"

#include <algorithm>
#include <limits>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

template <class F>
void with_wide(DType type, const F& f) {
  if (type == DType::f64)
    f(double{});
  else
    f(float{});
}

// The factor of each column, and what is added to q before it.
struct ColumnFactors {
  double add = 0, first = 1;
  const double* of = nullptr;  // null: 1
};

ColumnFactors column_factors(const SinkhornScale& a, double* factors) {
  ColumnFactors out;
  if (a.totals.none()) return out;
  const double* totals = a.totals.f64();
  double all = 0;
  bool empty = false;
  for (int64_t c = 0; c < a.columns; ++c) {
    all += totals[c];
    empty = empty || totals[c] == 0;
  }
  if (a.first) out.first = 1 / all;
  if (empty) out.add = kSinkhornLeast;
  const double first = out.first, add = out.add * double(a.samples);
  for (int64_t c = 0; c < a.columns; ++c)
    factors[c] = 1 / (double(a.columns) * base::fused(totals[c], first, add));
  out.of = factors;
  return out;
}

template <class T>
void scale_row(const SinkhornScale& a, const ColumnFactors& by, T* q, float* target) {
  double sum = 0;
  for (int64_t c = 0; c < a.columns; ++c) {
    double v = base::fused(double(q[c]), by.first, by.add);
    if (by.of) v *= by.of[c];
    q[c] = T(v);
    sum += double(q[c]);
  }
  const double factor = 1 / (a.targets.none() ? double(a.samples) * sum : sum);
  if (a.targets.none()) {
    for (int64_t c = 0; c < a.columns; ++c) q[c] = T(double(q[c]) * factor);
  } else if (target) {
    if (!a.hard) {
      for (int64_t c = 0; c < a.columns; ++c) target[c] = float(double(q[c]) * factor);
      return;
    }
    const int64_t top = std::max_element(q, q + a.columns) - q;
    std::fill(target, target + a.columns, 0.0f);
    target[top] = float(double(q[top]) * 0 + 1);  // NaN stays
  }
}

}  // namespace

void run_cpu(const ColumnTotals& a, Queue& queue) {
  double* totals = a.totals.f64();
  with_wide(a.x.type, [&](auto element) {
    using T = decltype(element);
    const T* x = static_cast<const T*>(a.x.data);
    for_ranges(queue, a.columns, a.x.count, 64, [&](int64_t begin, int64_t end) {
      std::fill(totals + begin, totals + end, 0.0);
      for (int64_t r = 0; r < a.rows; ++r) {
        const T* row = x + r * a.columns;
#pragma omp simd
        for (int64_t c = begin; c < end; ++c) totals[c] += double(row[c]);
      }
    });
  });
}

void run_cpu(const FiniteMaximum& a, Queue& queue) {
  const float* x = a.x.f32();
  const int64_t stride = a.stride ? a.stride : a.columns;
  auto* tops = static_cast<float*>(queue.scratch(size_t(a.rows) * sizeof(float)));
  for_ranges(queue, a.rows, a.rows * a.columns, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      float top = std::numeric_limits<float>::lowest();
      for (int64_t c = 0; c < a.columns; ++c) {
        const float v = x[r * stride + c];
        top = v > top && v <= std::numeric_limits<float>::max() ? v : top;
      }
      tops[r] = top;
    }
  });
  float top = std::numeric_limits<float>::lowest();
  for (int64_t r = 0; r < a.rows; ++r) top = std::max(top, tops[r]);
  *a.maximum.f32() = top;
}

void run_cpu(const SinkhornStart& a, Queue& queue) {
  const float top = *std::max_element(a.maxima.f32(), a.maxima.f32() + a.maxima.count);
  const int64_t stride = a.stride ? a.stride : a.columns;
  with_wide(a.q.type, [&](auto element) {
    using T = decltype(element);
    T* q = static_cast<T*>(a.q.data);
    for_ranges(queue, a.rows, a.q.count, 1, [&](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        const float* s = a.scores.f32() + r * stride;
        for (int64_t c = 0; c < a.columns; ++c) {
          const double v = double(s[c] > top ? top : s[c]) - double(top);
          q[r * a.columns + c] = T(base::math::exp(v / double(a.epsilon)));
        }
      }
    });
  });
}

void run_cpu(const SinkhornScale& a, Queue& queue) {
  auto* factors = static_cast<double*>(queue.scratch(size_t(a.columns) * sizeof(double)));
  const ColumnFactors by = column_factors(a, factors);
  const int64_t stride = a.target_stride ? a.target_stride : a.columns;
  with_wide(a.q.type, [&](auto element) {
    using T = decltype(element);
    T* q = static_cast<T*>(a.q.data);
    for_ranges(queue, a.rows, a.q.count, 1, [&](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        const bool wanted = !a.targets.none() && r < a.target_rows;
        scale_row(a, by, q + r * a.columns, wanted ? a.targets.f32() + r * stride : nullptr);
      }
    });
  });
}

}  // namespace kernels
