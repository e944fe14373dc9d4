// SPDX-License-Identifier: Apache-2.0
// InfoNCE over views of examples (ssl.md 3.1), for some rows of the matrix of all logits.
//
// Row and column i of the whole matrix is view i % views of example i / views. With S = exp(logit),
// the positives of row a are the other views of its example, and N_a is the sum of S_ab over the
// views of other examples. Each pair (a, positive p) is one term -log(S_ap / (S_ap + N_a)).
// `group` examples form a group: columns of other groups do not exist for a row.
#pragma once

#include "kernels/dispatch.hpp"

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

}  // namespace kernels
