// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of copies of columns.
#include "kernels/copy_columns.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const CopyColumns& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns);
  const bool narrow = a.x.type == DType::bf16 || a.x.type == DType::f16;
  const DType type = narrow && a.write == Write::overwrite ? a.x.type : DType::f32;
  need_matrix(a.op, "y", a.y, type, a.rows, a.columns, a.leading_of_y());
  need_matrix(a.op, "x", a.x, type, a.rows, a.columns, a.leading_of_x());
}

Cost cost(const CopyColumns& a) {
  const bool adds = a.write == Write::accumulate;
  const int64_t count = a.rows * a.columns;
  return {adds ? count : 0, (adds ? 3 : 2) * count * device::size_of(a.x.type)};
}

}  // namespace kernels
