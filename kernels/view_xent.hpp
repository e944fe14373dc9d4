// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of the views of an example against targets that other views give (ssl.md 3.5, 3.6),
// and such targets from a teacher's scores.
#pragma once

#include <array>

#include "kernels/check_views.hpp"

namespace kernels {

// y[r] = softmax((x[r] - centre) / temperature)
struct SoftTargets {
  static constexpr Op op = Op::soft_targets;
  View y, x;    // f32 [rows, columns]; y may be x
  View centre;  // f32 [columns]
  int64_t rows = 0, columns = 0;
  float temperature = 1;
};

// View v is compared with every target whose own view, views_of_targets[a], is another one:
//   loss[b] = (or +=) factor / pairs * sum over these pairs of
//             -sum_k targets[b][a][k] log softmax(scores[b][v] / temperature)_k
// gradient = scale * its derivative.
//
// There are many members because each operand and each number of the loss has one.
struct ViewXent {
  static constexpr Op op = Op::view_xent;
  static constexpr int kMostTargets = 16;

  View loss;          // f32 [examples]
  View gradient{};    // optional f32 [examples, views, columns]; may be scores
  View scores;        // f32 [examples, views, columns]
  View targets;       // f32 [examples, target_count, columns]
  View loss_scale{};  // optional f32 [1]: another factor of the gradient
  int64_t examples = 0, views = 0, columns = 0, target_count = 0;
  std::array<int32_t, kMostTargets> views_of_targets{};
  float temperature = 1, factor = 1, scale = 1;
  Write loss_write = Write::overwrite;

  constexpr bool compares(int64_t view, int64_t target) const {
    return views_of_targets[size_t(target)] != view;
  }
  constexpr int64_t pairs() const {
    int64_t n = 0;
    for (int64_t v = 0; v < views; ++v)
      for (int64_t a = 0; a < target_count; ++a) n += compares(v, a);
    return n;
  }
};

inline void check(const SoftTargets& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "y", a.y, DType::f32, {a.rows, a.columns});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.columns});
  need_view(a.op, "centre", a.centre, DType::f32, {a.columns});
  CHECK(a.temperature > 0, "{}: temperature is {}", name_of(a.op), a.temperature);
}
inline Cost cost(const SoftTargets& a) { return {6 * a.x.count, 2 * a.x.bytes()}; }

inline void check(const ViewXent& a) {
  need_size(a.op, "examples", a.examples);
  need_size(a.op, "views", a.views, 1);
  need_size(a.op, "columns", a.columns, 1);
  CHECK(a.target_count > 0 && a.target_count <= a.kMostTargets, "{}: {} targets, at most {}",
        name_of(a.op), a.target_count, a.kMostTargets);
  need_view(a.op, "loss", a.loss, DType::f32, {a.examples});
  allow_view(a.op, "gradient", a.gradient, DType::f32, {a.examples, a.views, a.columns});
  need_view(a.op, "scores", a.scores, DType::f32, {a.examples, a.views, a.columns});
  need_view(a.op, "targets", a.targets, DType::f32, {a.examples, a.target_count, a.columns});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.temperature > 0, "{}: temperature is {}", name_of(a.op), a.temperature);
  CHECK(a.pairs() > 0, "{}: no view has a target of another view", name_of(a.op));
}
inline Cost cost(const ViewXent& a) {
  return {(4 + 2 * a.target_count) * a.scores.count,
          a.scores.bytes() + a.gradient.bytes() + a.targets.bytes()};
}
inline size_t cuda_scratch(const ViewXent& a) {
  return size_t(a.examples * a.views) * sizeof(double);
}

}  // namespace kernels
