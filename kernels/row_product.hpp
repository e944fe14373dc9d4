// SPDX-License-Identifier: Apache-2.0
// Products of few rows with a matrix of weights, for text that is generated token by token.
//
// A row of the result has the same bits whatever the other rows are and however many there are, so
// sequences may join and leave a batch. The weights are read as they lie in memory, each once for
// 32 rows: a product of few rows takes the time to read them. Gemm serves many rows. It prepares
// its weights in each call, and its bits may depend on the number of rows.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// c = a . b + bias + residual. a and b are both f32, both bf16 or (on GPUs) both f16; c is f32 or
// of their type. Products are summed in f32; on CPUs in the order of k, with fused multiply-adds,
// or bf16 instructions that add two products at a time.
struct RowProduct {
  static constexpr Op op = Op::row_product;
  View c;           // [m, n]
  View a;           // [m, k]
  View b;           // [k, n]
  View bias{};      // optional [n], of c's type
  View residual{};  // optional f32 [m, n]; may be c
  int64_t m = 0, n = 0, k = 0;
};

}  // namespace kernels
