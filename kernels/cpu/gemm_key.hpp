// SPDX-License-Identifier: Apache-2.0
// Everything that decides how oneDNN runs a product, and the addresses that one run of it works on.
#pragma once

#include <compare>
#include <cstdint>

namespace kernels {

struct GemmKey {
  int64_t m, n, k, lda, ldb, ldc;
  bool trans_a, trans_b, bias, residual, accumulate, fixed_order;
  bool narrow = false, narrow_c = false;  // a and b, c are bf16
  bool widen =
      false;  // a (and c) are bf16, but floats are multiplied: blocks are widened (and rounded)
  bool gelu = false, gelu_of = false;
  int threads = 1;

  // Leading dimensions that the library sees: blocks that are widened, or rounded later, lie in
  // scratch without gaps.
  int64_t product_lda() const { return widen ? k : lda; }
  int64_t product_ldc() const { return rounds() ? n : ldc; }
  bool rounds() const { return widen && narrow_c; }
  auto operator<=>(const GemmKey&) const = default;
};

struct GemmOperands {
  char *c, *a, *b;
  float *bias, *residual;
  char *gelu, *gelu_of;
};

}  // namespace kernels
