// SPDX-License-Identifier: Apache-2.0
// Token embedding: a row gather plus a position table, and its gradient without atomics.
#pragma once

#include "kernels/dispatch.hpp"

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

}  // namespace kernels
