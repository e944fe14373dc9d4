// SPDX-License-Identifier: Apache-2.0
// Work after a product that cuBLASLt cannot do in its own kernel: bias, residual, GELU or its
// derivative, rounding.
#pragma once

#include "kernels/gemm.hpp"

namespace kernels {

// True if GELU or its derivative makes f32 results.
inline bool has_wide_gelu(const Gemm& a) {
  return a.c.type == DType::f32 && (!a.gelu.none() || !a.gelu_of.none());
}

// Computes c = (or +=) x + bias + residual, then gelu = GELU(c) or c *= GELU'(gelu_of). Views that
// `a` lacks are left out. x is f32 [m, n] without gaps, or null for zeros.
void finish_gemm(const Gemm& a, const float* x, Queue& queue);

}  // namespace kernels
