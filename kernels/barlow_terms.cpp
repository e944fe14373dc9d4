// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the loss of Barlow Twins.
#include "kernels/barlow_terms.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const BarlowTerms& a) {
  need_size(a.op, "width", a.width, 1);
  need_view(a.op, "products", a.products, DType::f32, {a.width, a.width});
  need_view(a.op, "loss", a.loss, DType::f32, {a.loss.count});
  need_view(a.op, "diagonal", a.diagonal, DType::f32, {a.diagonal.count});
  need_view(a.op, "off", a.off, DType::f32, {a.off.count});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.examples > 0, "{}: {} examples", name_of(a.op), a.examples);
}

Cost cost(const BarlowTerms& a) { return {6 * a.products.count, 2 * a.products.bytes()}; }

size_t cuda_scratch(const BarlowTerms& a) { return size_t(2 * a.width) * sizeof(double); }

}  // namespace kernels
