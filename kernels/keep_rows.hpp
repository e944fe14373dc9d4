// SPDX-License-Identifier: Apache-2.0
// Ends a step that wrote some rows of a state. If the step is applied, the op copies these rows to
// the values that are kept. If it is not, the op gives the rows their old values back.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct KeepRows {
  static constexpr Op op = Op::keep_rows;
  // f32 [n]: elements [first, first + n) of the values that are kept; none: other ranks keep all
  View kept;
  View state;    // f32 [state_rows, width]: as the step wrote it
  View before;   // f32 [rows, width]: the rows of `index` before that
  View index;    // i32 [rows], each < state_rows; equal ones have equal rows in `before`
  View decided;  // f32 [3], see Clip
  int64_t rows = 0, width = 0, state_rows = 0, first = 0;
};

inline void check(const KeepRows& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "state_rows", a.state_rows);
  need_size(a.op, "first", a.first);
  CHECK(a.first + a.kept.count <= a.state_rows * a.width, "{}: keeps elements {} to {} of {}",
        name_of(a.op), a.first, a.first + a.kept.count, a.state_rows * a.width);
  allow_view(a.op, "kept", a.kept, DType::f32, {a.kept.count});
  need_view(a.op, "state", a.state, DType::f32, {a.state_rows, a.width});
  need_view(a.op, "before", a.before, DType::f32, {a.rows, a.width});
  need_view(a.op, "index", a.index, DType::i32, {a.rows});
  need_view(a.op, "decided", a.decided, DType::f32, {3});
}
inline Cost cost(const KeepRows& a) { return {0, 2 * a.before.bytes() + a.index.bytes()}; }

}  // namespace kernels
