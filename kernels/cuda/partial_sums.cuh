// SPDX-License-Identifier: Apache-2.0
// Second stage of sums over many blocks: adds the partial sums of blocks. Their number alone fixes
// the order.
#pragma once

#include "kernels/cuda/launch_shapes.hpp"
#include "kernels/cuda/many.cuh"

namespace kernels {

// out[j] = (or +=) sum over b of partial[b * stride + j], for j < columns and b < blocks. All
// memory is on the queue's device.
void add_partials(float* out, const float* partial, int64_t blocks, int64_t stride, int64_t columns,
                  Write write, Queue& queue);

// Place of the partial sums, in doubles, that the blocks of one op write: [sum][block] in
// `scratch`. `of` moves `scratch` past them. A single block writes the results directly.
struct DoublePartials {
  double *out, *data;
  int64_t blocks, sums;

  static DoublePartials of(const View& out, int64_t blocks, double*& scratch) {
    DoublePartials p{out.f64(), blocks == 1 ? out.f64() : scratch, blocks, out.count};
    scratch += partial_doubles(blocks, p.sums);
    return p;
  }
};

// out[s] = the sum over an op's blocks. The launch has one block per sum.
constexpr int kSumThreads = 256;
__global__ void add_double_partials(const ManyItems<DoublePartials> __grid_constant__ all);

// Adds the partial sums of each op. partials_of(op, scratch) returns their place.
template <class Args, class F>
void add_partials_of(std::span<const Args> all, double* scratch, Queue& queue,
                     const F& partials_of) {
  ManyLaunch launch_sums(add_double_partials, kSumThreads, queue);
  for (const Args& args : all)
    if (const DoublePartials p = partials_of(args, scratch); p.blocks != 1)
      launch_sums.add(p, p.sums);
  launch_sums.start();
}

}  // namespace kernels
