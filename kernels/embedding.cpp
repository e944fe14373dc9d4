// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of token embedding.
#include "kernels/embedding.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const EmbeddingForward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "vocabulary", a.vocabulary, 1);
  need_size(a.op, "length", a.length, 1);
  need_view(a.op, "y", a.y, DType::f32, {a.rows, a.width});
  need_view(a.op, "ids", a.ids, DType::i32, {a.rows});
  need_view(a.op, "table", a.table, DType::f32, {a.vocabulary, a.width});
  need_view(a.op, "positions", a.positions, DType::f32, {a.length, a.width});
}

Cost cost(const EmbeddingForward& a) {
  int64_t n = a.rows * a.width;
  return {n, 4 * (2 * n + std::min(a.rows, a.length) * a.width + a.rows)};
}

void check(const EmbeddingBackward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "vocabulary", a.vocabulary, 1);
  need_view(a.op, "dtable", a.dtable, DType::f32, {a.vocabulary, a.width});
  need_view(a.op, "dy", a.dy, DType::f32, {a.rows, a.width});
  need_view(a.op, "ids", a.ids, DType::i32, {a.rows});
}

Cost cost(const EmbeddingBackward& a) {
  int64_t n = a.rows * a.width,
          table = a.write == Write::overwrite ? a.vocabulary * a.width : 2 * n;
  return {n, 4 * (n + a.rows + table)};
}

}  // namespace kernels
