// SPDX-License-Identifier: Apache-2.0
// Sums of a pass over its examples, from the losses of the predicted rows. Metrics are formed from
// these sums. Column `loss` is finite only if the losses of all examples are.
#pragma once

#include "base/fused.hpp"
#include "kernels/check_views.hpp"

namespace kernels {

// Columns of the sums over the examples of a slice; nothing is divided. Examples whose flag is 0
// form the second group, all others the first. Rows are the positions whose weight is above 0;
// row_loss sums weight * loss over them.
struct LossColumns {
  enum Index {
    loss,
    loss_first,
    loss_second,
    examples_first,
    examples_second,
    rows,
    row_loss,
    count
  };
};

// For each example: n = sum of its weights, nll = sum of weight * loss over its positions whose
// weight is above 0, in double, in order. The loss of the example is nll / n, or 0 if n is 0.
// sums[j] = the sums over the examples of slice j, in order.
struct LossSums {
  static constexpr Op op = Op::loss_sums;
  View sums;  // f64 [slices, LossColumns::count]
  View loss;  // f32 [any], of the predicted rows
  // i32 [batch]: the example's first row; it has one row per position of weight above 0
  View first;
  View weights;  // f32 [batch, length]
  View flags{};  // optional u8 [batch]: 0 = second group; none: all examples are in the first
  int64_t batch = 0, length = 0, slices = 1;
};

// Sums of one example.
struct ExampleLoss {
  double n = 0, nll = 0, rows = 0;
  constexpr double loss() const { return n > 0 ? nll / n : 0; }
};
constexpr ExampleLoss example_loss(const float* loss, const float* weights, int64_t length) {
  ExampleLoss e;
  for (int64_t l = 0; l < length; ++l) {
    const double weight = double(weights[l]);
    e.n += weight;
    if (!(weight > 0)) continue;
    e.nll = base::fused(weight, double(*loss++), e.nll);
    e.rows += 1;
  }
  return e;
}
constexpr void add_example(double* sums, const ExampleLoss& e, bool second) {
  using C = LossColumns;
  sums[C::loss] += e.loss();
  sums[second ? C::loss_second : C::loss_first] += e.loss();
  sums[second ? C::examples_second : C::examples_first] += 1;
  sums[C::rows] += e.rows;
  sums[C::row_loss] += e.nll;
}

inline void check(const LossSums& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "length", a.length, 1);
  need_size(a.op, "slices", a.slices, 1);
  CHECK(a.batch % a.slices == 0, "{}: {} examples cannot be divided into {} slices", name_of(a.op),
        a.batch, a.slices);
  need_view(a.op, "sums", a.sums, DType::f64, {a.slices, LossColumns::count});
  need_view(a.op, "loss", a.loss, DType::f32, {a.loss.count});
  need_view(a.op, "first", a.first, DType::i32, {a.batch});
  need_view(a.op, "weights", a.weights, DType::f32, {a.batch, a.length});
  allow_view(a.op, "flags", a.flags, DType::u8, {a.batch});
}

inline Cost cost(const LossSums& a) {
  return {3 * a.weights.count, a.loss.bytes() + a.weights.bytes()};
}

}  // namespace kernels
