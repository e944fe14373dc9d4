// SPDX-License-Identifier: Apache-2.0
// GemmKey holds everything that decides how oneDNN runs a product; it selects the plan.
// GemmOperands holds the addresses that one run works on.
#pragma once

#include <compare>
#include <cstdint>

namespace kernels {

// There are many members because each fact that can change the plan has one, and the comparison of
// two keys compares them all.
struct GemmKey {
  int64_t m, n, k, lda, ldb, ldc;
  bool trans_a, trans_b, bias, residual, accumulate, fixed_order;
  bool narrow = false;    // oneDNN multiplies bf16 a and b
  bool narrow_c = false;  // c is bf16
  // a is bf16, but oneDNN multiplies floats: a is widened block by block, and a bf16 c rounded.
  bool widen = false;
  bool gelu = false, gelu_of = false;
  bool rows_alike = false;  // a row of c does not depend on m (Queue::rows_alike)
  bool packed_b = false;    // b is brought into the library's layout once, not for each block
  int threads = 1;

  // Leading dimensions of a and c that the library sees. Blocks that are widened, or rounded later,
  // are stored in scratch without gaps.
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
