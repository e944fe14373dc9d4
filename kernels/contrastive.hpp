// SPDX-License-Identifier: Apache-2.0
// InfoNCE over views of examples (ssl.md 3.1), for some rows of the matrix of all logits.
//
// Row and column i of the whole matrix is view i % views of example i / views. With S = exp(logit),
// the positives of row a are the other views of its example, and N_a is the sum of S_ab over the
// views of other examples. Each pair (a, positive p) is one term -log(S_ap / (S_ap + N_a)).
// `group` examples form a group: columns of other groups do not exist for a row.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct ContrastiveShape {
  int64_t rows = 0;     // of this call, whole examples
  int64_t columns = 0;  // views of all examples
  int64_t first = 0;    // place of row 0 among the columns
  int64_t views = 2;
  int64_t group = 0;  // consecutive examples; 0: all

  // The columns of the group that row r of this call belongs to.
  constexpr int64_t group_begin(int64_t r) const {
    const int64_t size = group * views;
    return group == 0 ? 0 : (first + r) / size * size;
  }
  constexpr int64_t group_end(int64_t r) const {
    const int64_t end = group_begin(r) + group * views;
    return group == 0 || end > columns ? columns : end;
  }
  // The first column of the row's own example.
  constexpr int64_t own(int64_t r) const { return (first + r) / views * views; }
};

// terms[a] = (log N_a, log sum over p of 1 / (S_ap + N_a)); loss = the mean term of each example.
struct ContrastiveTerms {
  static constexpr Op op = Op::contrastive_terms;
  View terms;   // f64 [rows, 2]
  View loss;    // f32 [rows / views]
  View logits;  // f32 [rows, columns]
  ContrastiveShape shape;
};

// logits[a][b] becomes `scale` times the derivative of the sum of all terms of all rows, if logits
// a, b and b, a are one number.
struct ContrastiveGradient {
  static constexpr Op op = Op::contrastive_gradient;
  View logits;        // f32 [rows, columns], in and out
  View terms;         // f64 [columns, 2], of all rows
  View loss_scale{};  // optional f32 [1]: another factor
  ContrastiveShape shape;
  float scale = 1;
};

inline void check_contrastive_shape(Op op, const ContrastiveShape& s) {
  need_size(op, "rows", s.rows);
  need_size(op, "views", s.views, 2);
  need_size(op, "group", s.group);
  CHECK(s.rows % s.views == 0 && s.columns % s.views == 0 && s.first % s.views == 0,
        "{}: {} rows from {} on and {} columns are not whole examples of {} views", name_of(op),
        s.rows, s.first, s.columns, s.views);
  CHECK(s.first >= 0 && s.first + s.rows <= s.columns, "{}: rows [{}, +{}) of {}", name_of(op),
        s.first, s.rows, s.columns);
}

inline void check(const ContrastiveTerms& a) {
  check_contrastive_shape(a.op, a.shape);
  need_view(a.op, "terms", a.terms, DType::f64, {a.shape.rows, 2});
  need_view(a.op, "loss", a.loss, DType::f32, {a.shape.rows / a.shape.views});
  need_view(a.op, "logits", a.logits, DType::f32, {a.shape.rows, a.shape.columns});
}

inline Cost cost(const ContrastiveTerms& a) { return {2 * a.logits.count, a.logits.bytes()}; }

inline void check(const ContrastiveGradient& a) {
  check_contrastive_shape(a.op, a.shape);
  need_view(a.op, "terms", a.terms, DType::f64, {a.shape.columns, 2});
  need_view(a.op, "logits", a.logits, DType::f32, {a.shape.rows, a.shape.columns});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
}

inline Cost cost(const ContrastiveGradient& a) {
  return {4 * a.logits.count, 2 * a.logits.bytes()};
}

}  // namespace kernels
