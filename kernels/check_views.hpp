// SPDX-License-Identifier: Apache-2.0
// Checks of arguments that ops share. They look at types and counts only, because the plan back end
// has no data to read.
#pragma once

#include <initializer_list>

#include "kernels/dispatch.hpp"

namespace kernels {

// Refuses a size below `least`.
void need_size(Op op, const char* name, int64_t size, int64_t least = 0);

// Refuses a view of another type or another number of elements than the product of `dims`. The view
// may be null only if that product is 0.
void need_view(Op op, const char* name, const View& view, DType type,
               std::initializer_list<int64_t> dims);

// need_view for activations: f32, bf16 or, on GPUs, f16.
void need_activation(Op op, const char* name, const View& view,
                     std::initializer_list<int64_t> dims);

// need_view for an optional view, which may be absent.
void allow_view(Op op, const char* name, const View& view, DType type,
                std::initializer_list<int64_t> dims);

// need_view for a matrix with a leading dimension. A matrix without gaps needs exactly rows *
// columns elements; one with gaps needs at least those up to its last element.
void need_matrix(Op op, const char* name, const View& view, DType type, int64_t rows,
                 int64_t columns, int64_t leading);

// Refuse ids outside [begin, end). They read data, so only run_cpu may call them.
void need_id(Op op, int32_t id, int64_t row, int64_t begin, int64_t end);
void need_ids(Op op, const int32_t* ids, int64_t rows, int64_t begin, int64_t end);

}  // namespace kernels
