// SPDX-License-Identifier: Apache-2.0
// Lion (arXiv 2302.06675): the sign of a mean of gradients, as in optax. Each weight moves by the
// rate, so the rate is some ten times smaller than Adam's and the decay larger.
#pragma once

#include "optim/method.hpp"

namespace optim {

struct LionOptions : MethodOptions {
  double b1 = 0.9, b2 = 0.99;
  device::DType momentum_type = device::DType::f32;

  void bind(config::Table& t) override;
  std::unique_ptr<Method> make(const shard::Fabric& fabric, const Chosen& chosen) const override;
};

}  // namespace optim
