// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of products of few rows.
#include "kernels/row_product.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const RowProduct& a) {
  need_size(a.op, "m", a.m);
  need_size(a.op, "n", a.n, 1);
  need_size(a.op, "k", a.k, 1);
  need_activation(a.op, "a", a.a, {a.m, a.k});
  need_view(a.op, "b", a.b, a.a.type, {a.k, a.n});
  need_view(a.op, "c", a.c, a.c.type == a.a.type ? a.a.type : DType::f32, {a.m, a.n});
  allow_view(a.op, "bias", a.bias, a.c.type, {a.n});
  allow_view(a.op, "residual", a.residual, DType::f32, {a.m, a.n});
}

Cost cost(const RowProduct& a) {
  return {2 * a.m * a.n * a.k,
          a.a.bytes() + a.b.bytes() + a.c.bytes() + a.bias.bytes() + a.residual.bytes()};
}

}  // namespace kernels
