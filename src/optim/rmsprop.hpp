// SPDX-License-Identifier: Apache-2.0
// RMSprop as PyTorch's: the gradient over the root of a mean of its squares, and then momentum.
#pragma once

#include "optim/method.hpp"

namespace optim {

struct RmspropOptions : MethodOptions {
  double alpha = 0.99, eps = 1e-8, momentum = 0;
  bool centered = false;

  void bind(config::Table& t) override;
  std::unique_ptr<Method> make(const shard::Fabric& fabric, const Chosen& chosen) const override;
};

}  // namespace optim
