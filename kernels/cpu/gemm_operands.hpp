// SPDX-License-Identifier: Apache-2.0
// Converts the arguments of a product to the key of its plan and to operands. Operands that oneDNN
// cannot read are widened to floats, in memory of the calling thread.
#pragma once

#include "kernels/cpu/gemm_key.hpp"
#include "kernels/gemm.hpp"

namespace kernels {

constexpr size_t kMostByRows = 4;  // products of one run_cpu_by_rows

// The operands that are one column whose elements do not follow each other.
struct SpreadColumns {
  explicit SpreadColumns(const Gemm& g)
      : a(g.m == 1 && g.trans_a && g.leading_of_a() > 1),
        b(g.n == 1 && !g.trans_b && g.leading_of_b() > 1),
        c(g.n == 1 && g.leading_of_c() > 1) {}
  bool any() const { return a || b || c; }
  bool a, b, c;
};

GemmKey key_of(const Gemm& a, const Queue& queue);

// Returns the operands of product i of those that run at the same time. It widens a bf16 bias.
GemmOperands operands_of(const Gemm& a, size_t i, Queue& queue);

// Buffers of floats. Each is as large as its largest use.
struct WideBuffers {
  std::vector<float> a, b, c, bias[kMostByRows];
};
WideBuffers& wide_buffers();  // of the calling thread
// Returns `count` floats of the buffer, which grows if it must.
View float_view(std::vector<float>& buffer, int64_t count);
// Returns a copy of x as floats, in the buffer.
View widened(const View& x, std::vector<float>& buffer, Queue& queue);

}  // namespace kernels
