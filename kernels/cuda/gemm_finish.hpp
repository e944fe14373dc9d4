// What follows a product where the library cannot do it in the same kernel: bias, residual, GELU or its derivative, rounding.
#pragma once

#include "kernels/gemm.hpp"

namespace kernels {

// c = (+=) x + bias + residual; then gelu = GELU(c) or c *= GELU'(gelu_of), as `a` asks. x: f32 [m, n] packed, or null for zeros.
void finish_gemm(const Gemm& a, const float* x, Queue& queue);

}  // namespace kernels
