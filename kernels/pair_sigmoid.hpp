// SPDX-License-Identifier: Apache-2.0
// The sigmoid loss of pairs of images and texts (siglip.md 2), for some rows of the matrix of all
// cosines. The pair of row r and column first + r is a true one; all others are false.
//
// With the logit z = exp(t) * cosine + b, and s = 1 for a true pair and -1 for a false one, a pair
// has the loss -log sigmoid(s * z).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// cosines[r][c] becomes the gradient, `scale` times the derivative of the pair's loss by its
// cosine. The other results are sums over the columns of a row: of the losses, and of `scale` times
// their derivatives by t and by b.
struct PairSigmoid {
  static constexpr Op op = Op::pair_sigmoid;
  View cosines;       // f32 [rows, columns], in and out
  View t, b;          // f32 [1]
  View loss{};        // optional f32 [rows]
  View dt{}, db{};    // optional f32 [rows]
  View loss_scale{};  // optional f32 [1]: another factor of all derivatives
  int64_t rows = 0, columns = 0;
  int64_t first = 0;  // the column of row 0
  float scale = 1;
};

inline void check(const PairSigmoid& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "cosines", a.cosines, DType::f32, {a.rows, a.columns});
  need_view(a.op, "t", a.t, DType::f32, {1});
  need_view(a.op, "b", a.b, DType::f32, {1});
  allow_view(a.op, "loss", a.loss, DType::f32, {a.rows});
  allow_view(a.op, "dt", a.dt, DType::f32, {a.rows});
  allow_view(a.op, "db", a.db, DType::f32, {a.rows});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.first >= 0 && a.first + a.rows <= a.columns, "{}: rows [{}, +{}) of {}", name_of(a.op),
        a.first, a.rows, a.columns);
}

inline Cost cost(const PairSigmoid& a) { return {10 * a.cosines.count, 2 * a.cosines.bytes()}; }

}  // namespace kernels
