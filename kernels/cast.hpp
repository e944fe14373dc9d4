// Between float32 and bfloat16: what a bf16 product's operands go through. To the nearest, ties to even.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct Cast {
  static constexpr Op op = Op::cast;
  View y, x;              // same count; f32 to bf16 or bf16 to f32
};
void check(const Cast&);
Cost cost(const Cast&);
void run_cpu(const Cast&, Queue&);
void run_cuda(const Cast&, Queue&);

}  // namespace kernels
