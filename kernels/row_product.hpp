// SPDX-License-Identifier: Apache-2.0
// Products of few rows with a matrix of weights, for text that is generated token by token.
//
// The bits of a row of the result do not depend on the other rows or on their number, so sequences
// may join and leave a batch. The weights are read as they are stored, each once for 32 rows: a
// product of few rows takes the time to read them. Gemm serves many rows. It prepares its weights
// in each call, and its bits may depend on the number of rows.
#pragma once

#include "kernels/check_views.hpp"

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

inline void check(const RowProduct& a) {
  need_size(a.op, "m", a.m);
  need_size(a.op, "n", a.n, 1);
  need_size(a.op, "k", a.k, 1);
  need_activation(a.op, "a", a.a, {a.m, a.k});
  need_view(a.op, "b", a.b, a.a.type, {a.k, a.n});
  need_view(a.op, "c", a.c, a.c.type == a.a.type ? a.a.type : DType::f32, {a.m, a.n});
  allow_view(a.op, "bias", a.bias, a.c.type, {a.n});
  allow_view(a.op, "residual", a.residual, DType::f32, {a.m, a.n});
}

inline Cost cost(const RowProduct& a) {
  return {2 * a.m * a.n * a.k,
          a.a.bytes() + a.b.bytes() + a.c.bytes() + a.bias.bytes() + a.residual.bytes()};
}

}  // namespace kernels
