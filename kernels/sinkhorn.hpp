// SPDX-License-Identifier: Apache-2.0
// Sinkhorn's assignment of samples to prototypes (ssl.md 3.5), in steps between which ranks add
// their totals. A row of q is a sample, a column is a prototype; q is f32 or f64.
//
// sinkhorn_start makes q. Each of `iterations` rounds forms the totals of the columns over all
// samples (column_totals, then the sum over ranks), and divides by them in sinkhorn_scale.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// totals[c] = sum over the rows of x, in double, in order of the rows.
struct ColumnTotals {
  static constexpr Op op = Op::column_totals;
  View totals;  // f64 [columns]
  View x;       // f32 or f64 [rows, columns]
  int64_t rows = 0, columns = 0;
};

// maximum = the largest finite value of x, or the lowest number if there is none.
struct FiniteMaximum {
  static constexpr Op op = Op::finite_maximum;
  View maximum;  // f32 [1]
  View x;        // f32 [rows, columns], rows are `stride` elements apart (0 = columns)
  int64_t rows = 0, columns = 0, stride = 0;
};

// q = exp((min(scores, M) - M) / epsilon), M = the largest of the maxima.
struct SinkhornStart {
  static constexpr Op op = Op::sinkhorn_start;
  View q;       // f32 or f64 [rows, columns]
  View scores;  // f32 [rows, columns], rows are `stride` elements apart (0 = columns)
  View maxima;  // f32 [any]
  int64_t rows = 0, columns = 0, stride = 0;
  float epsilon = 1;
};

// Added to every element of q if a prototype has no sample.
constexpr double kSinkhornLeast = 1e-12;

// One round. q is first divided by the sum of the totals if `first`. If any total is 0, then
// kSinkhornLeast is added to q, and to each total for each sample. Every column is divided by
// columns * total, then every row by samples * its sum, or by its sum if targets are given. Without
// totals only the rows are divided.
struct SinkhornScale {
  static constexpr Op op = Op::sinkhorn_scale;
  View q;          // f32 or f64 [rows, columns], in and out; out only without targets
  View totals{};   // optional f64 [columns]
  View targets{};  // optional f32 [target_rows, columns], rows are target_stride elements apart
  int64_t rows = 0, columns = 0, samples = 0;
  int64_t target_rows = 0, target_stride = 0;
  bool first = false;
  bool hard = false;  // a target is 1 at its largest element (the first one of equals), else 0
};
size_t cuda_scratch(const SinkhornScale&);

}  // namespace kernels
