// SPDX-License-Identifier: Apache-2.0
// Gradient descent as PyTorch's SGD (ssl.md 4): plain, without state, or with momentum in f32,
// dampening and Nesterov. Its weight decay is optimizer.decay_form = "gradient".
#pragma once

#include "optim/method.hpp"

namespace optim {

struct SgdOptions : MethodOptions {
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  void bind(config::Table& t) override;
  std::unique_ptr<Method> make(const shard::Fabric& fabric, const Chosen& chosen) const override;
};

}  // namespace optim
