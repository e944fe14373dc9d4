// SPDX-License-Identifier: Apache-2.0
// Checks of arguments that ops share, and their messages.
#include "kernels/check_views.hpp"

#include <fmt/ranges.h>

namespace kernels {

void need_size(Op op, const char* name, int64_t size, int64_t least) {
  CHECK(size >= least, "{}: {} is {}, must be at least {}", name_of(op), name, size, least);
}

void need_view(Op op, const char* name, const View& view, DType type,
               std::initializer_list<int64_t> dims) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  CHECK(view.type == type, "{}: {} holds {}, not {}", name_of(op), name, device::name_of(view.type),
        device::name_of(type));
  CHECK(view.count == count, "{}: {} has {} elements, not [{}] = {}", name_of(op), name, view.count,
        fmt::join(dims, ", "), count);
  CHECK(!view.none() || count == 0, "{}: {} [{}] is missing", name_of(op), name,
        fmt::join(dims, ", "));
}

void need_activation(Op op, const char* name, const View& view,
                     std::initializer_list<int64_t> dims) {
  const bool narrow = view.type == DType::bf16 || view.type == DType::f16;
  need_view(op, name, view, narrow ? view.type : DType::f32, dims);
}

void allow_view(Op op, const char* name, const View& view, DType type,
                std::initializer_list<int64_t> dims) {
  if (!view.none()) need_view(op, name, view, type, dims);
}

void need_matrix(Op op, const char* name, const View& view, DType type, int64_t rows,
                 int64_t columns, int64_t leading) {
  CHECK(leading >= columns, "{}: leading dimension of {} is {}, less than its {} columns",
        name_of(op), name, leading, columns);
  if (leading == columns || rows == 0) return need_view(op, name, view, type, {rows, columns});
  need_view(op, name, {view.data, view.type, rows * columns}, type, {rows, columns});
  int64_t least = (rows - 1) * leading + columns;
  CHECK(view.count >= least,
        "{}: {} has {} elements, needs {} for [{}, {}] with leading dimension {}", name_of(op),
        name, view.count, least, rows, columns, leading);
}

void need_id(Op op, int32_t id, int64_t row, int64_t begin, int64_t end) {
  if (id < begin || id >= end) [[unlikely]]
    base::fail(base::Exit::internal, "{}: id {} of row {} is outside [{}, {})", name_of(op), id,
               row, begin, end);
}

void need_ids(Op op, const int32_t* ids, int64_t rows, int64_t begin, int64_t end) {
  for (int64_t r = 0; r < rows; ++r) need_id(op, ids[r], r, begin, end);
}

}  // namespace kernels
