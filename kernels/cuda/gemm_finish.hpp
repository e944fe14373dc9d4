// SPDX-License-Identifier: Apache-2.0
// Work after a product that the library cannot do in its own kernel: bias, residual, GELU or its
// derivative, rounding.
#pragma once

#include "kernels/gemm.hpp"

namespace kernels {

// c = (+=) x + bias + residual; then gelu = GELU(c) or c *= GELU'(gelu_of), where `a` has these
// views. x: f32 [m, n] packed, or null for zeros.
void finish_gemm(const Gemm& a, const float* x, Queue& queue);

}  // namespace kernels
