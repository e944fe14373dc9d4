// SPDX-License-Identifier: Apache-2.0
// Conversion of a product's arguments: the key of its plan, and its addresses. Operands that oneDNN
// cannot read are widened to floats, in memory of the calling thread.
#pragma once

#include "kernels/cpu/gemm_key.hpp"
#include "kernels/gemm.hpp"

namespace kernels {

constexpr size_t kMostByRows = 4;  // products of one run_cpu_by_rows

GemmKey key_of(const Gemm& a, const Queue& queue);

// Addresses of product i of those that run at the same time. Widens its bias.
GemmOperands operands_of(const Gemm& a, size_t i, Queue& queue);

// Buffers of floats, each as large as the largest use of it.
struct WideBuffers {
  std::vector<float> a, b, c, bias[kMostByRows];
};
WideBuffers& wide_buffers();  // the calling thread's
View float_view(std::vector<float>& buffer, int64_t count);
View widened(const View& x, std::vector<float>& buffer, Queue& queue);

}  // namespace kernels
