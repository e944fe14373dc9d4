// Second stage of sums over many blocks: partial sums are added in an order that their number alone decides.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// out[j] = (+=) sum over b of partial[b * stride + j], j < columns, b < blocks. All on the queue's device.
void add_partials(float* out, const float* partial, int64_t blocks, int64_t stride, int64_t columns, Write write,
                  Queue& queue);

// out[s] = sum over b of partial[s * blocks + b], s < sums.
void add_partials(double* out, const double* partial, int64_t blocks, int sums, Queue& queue);

}  // namespace kernels
