// SPDX-License-Identifier: Apache-2.0
// The loss of Barlow Twins from the correlation of two views (ssl.md 3.2).
#pragma once

#include "kernels/dispatch.hpp"

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
size_t cuda_scratch(const BarlowTerms&);

}  // namespace kernels
