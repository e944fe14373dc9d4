// SPDX-License-Identifier: Apache-2.0
// Gradient descent with momentum: big_vision's momentum_hp. The trace is stored in bfloat16 by
// default.
#pragma once

#include "optim/method.hpp"

namespace optim {

struct MomentumOptions : MethodOptions {
  double momentum = 0.9;
  device::DType momentum_type = device::DType::bf16;
  bool nesterov = false;

  void bind(config::Table& t) override;
  std::unique_ptr<Method> make(const shard::Fabric& fabric, const Chosen& chosen) const override;
};

}  // namespace optim
