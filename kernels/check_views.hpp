// Checks that ops share. They look at types and counts only, so they hold under the plan back end, whose data nobody
// may read.
#pragma once

#include <initializer_list>

#include "kernels/dispatch.hpp"

namespace kernels {

// A size of an op: not negative, and not zero where that would make no sense.
void need_size(Op op, const char* name, int64_t size, int64_t least = 0);

// A view that must be there, of that type and with exactly the product of `dims` elements (null only if that is 0).
void need_view(Op op, const char* name, const View& view, DType type, std::initializer_list<int64_t> dims);

// The same for activations: f32, bf16 or, on GPUs, f16.
void need_activation(Op op, const char* name, const View& view, std::initializer_list<int64_t> dims);

// need_view for a view that may be absent.
void allow_view(Op op, const char* name, const View& view, DType type, std::initializer_list<int64_t> dims);

// A matrix with a leading dimension: exactly rows * columns elements if packed, at least up to its last element if not.
void need_matrix(Op op, const char* name, const View& view, DType type, int64_t rows, int64_t columns,
                 int64_t leading);

// Refuses ids outside [begin, end); reads data, so only run_cpu may call it.
void need_ids(Op op, const int32_t* ids, int64_t rows, int64_t begin, int64_t end);

}  // namespace kernels
