// SPDX-License-Identifier: Apache-2.0
// Token embedding: a row gather plus a position table, and its gradient without atomics.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct EmbeddingForward {
  static constexpr Op op = Op::embedding_forward;
  View y;          // [rows, width]
  View ids;        // i32 [rows], each in [0, vocabulary)
  View table;      // [vocabulary, width]
  View positions;  // [length, width]; row r gets positions[r % length] added
  int64_t rows = 0, width = 0, vocabulary = 0, length = 0;
};

// dtable[id] = (or +=) sum of dy over the rows with that id, in row order for any number of
// threads. With overwrite, the rows of unused ids become 0.
struct EmbeddingBackward {
  static constexpr Op op = Op::embedding_backward;
  View dtable;  // [vocabulary, width]
  View dy;      // [rows, width]
  View ids;     // i32 [rows]
  int64_t rows = 0, width = 0, vocabulary = 0;
  Write write = Write::overwrite;
};
size_t cuda_scratch(const EmbeddingBackward&);

inline void check(const EmbeddingForward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "vocabulary", a.vocabulary, 1);
  need_size(a.op, "length", a.length, 1);
  need_view(a.op, "y", a.y, DType::f32, {a.rows, a.width});
  need_view(a.op, "ids", a.ids, DType::i32, {a.rows});
  need_view(a.op, "table", a.table, DType::f32, {a.vocabulary, a.width});
  need_view(a.op, "positions", a.positions, DType::f32, {a.length, a.width});
}

inline Cost cost(const EmbeddingForward& a) {
  int64_t n = a.rows * a.width;
  return {n, 4 * (2 * n + std::min(a.rows, a.length) * a.width + a.rows)};
}

inline void check(const EmbeddingBackward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "vocabulary", a.vocabulary, 1);
  need_view(a.op, "dtable", a.dtable, DType::f32, {a.vocabulary, a.width});
  need_view(a.op, "dy", a.dy, DType::f32, {a.rows, a.width});
  need_view(a.op, "ids", a.ids, DType::i32, {a.rows});
}

inline Cost cost(const EmbeddingBackward& a) {
  int64_t n = a.rows * a.width,
          table = a.write == Write::overwrite ? a.vocabulary * a.width : 2 * n;
  return {n, 4 * (n + a.rows + table)};
}

}  // namespace kernels
