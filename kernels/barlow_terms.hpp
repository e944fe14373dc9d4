// SPDX-License-Identifier: Apache-2.0
// The loss of Barlow Twins from the correlation of two views (ssl.md 3.2).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// With C = products / examples:
//   diagonal = factor * sum_i (C_ii - 1)^2, off = factor * lambda * sum_{i != j} C_ij^2
// products becomes `scale` times the derivative of diagonal + off by products.
struct BarlowTerms {
  static constexpr Op op = Op::barlow_terms;
  View products;       // f32 [width, width], in and out
  View loss;           // f32 [any]: every element becomes diagonal + off
  View diagonal, off;  // f32 [any]: every element becomes that sum
  View loss_scale{};   // optional f32 [1]: another factor of the derivative
  int64_t width = 0;
  double examples = 1;
  float factor = 1, lambda = 0, scale = 1;
};

inline void check(const BarlowTerms& a) {
  need_size(a.op, "width", a.width, 1);
  need_view(a.op, "products", a.products, DType::f32, {a.width, a.width});
  need_view(a.op, "loss", a.loss, DType::f32, {a.loss.count});
  need_view(a.op, "diagonal", a.diagonal, DType::f32, {a.diagonal.count});
  need_view(a.op, "off", a.off, DType::f32, {a.off.count});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.examples > 0, "{}: {} examples", name_of(a.op), a.examples);
}

inline Cost cost(const BarlowTerms& a) { return {6 * a.products.count, 2 * a.products.bytes()}; }

inline size_t cuda_scratch(const BarlowTerms& a) { return size_t(2 * a.width) * sizeof(double); }

}  // namespace kernels
