// SPDX-License-Identifier: Apache-2.0
// LARC and LARS (ssl.md 4) around any optimizer that reads gradients once: the gradient of each
// tensor, with its weight decay, is scaled by a ratio of the norms of weights and gradient. The
// inner optimizer's momentum is computed from the scaled gradients.
#pragma once

#include <memory>
#include <vector>

#include "kernels/trust.hpp"
#include "optim/method.hpp"

namespace optim {

// [optimizer.trust]
struct TrustOptions {
  kernels::Trust rule = kernels::Trust::larc;
  double coefficient = 0.001, eps = 1e-8;
  bool clip = false, exclude_vectors = false;
  void bind(config::Table& t);
};

// `scales`, by parameter: false = the gradient of the tensor, decay included, is not scaled.
std::unique_ptr<Method> make_trust(const shard::Fabric& fabric, const TrustOptions& options,
                                   const std::vector<bool>& scales, std::unique_ptr<Method> inner);

}  // namespace optim
