// SPDX-License-Identifier: Apache-2.0
// Adam with decoupled weight decay: optax's scale_by_adam in big_vision's chain. PyTorch's Adam and
// AdamW have another optimizer.decay_form and exact corrections (ssl.md 4).
#pragma once

#include "optim/method.hpp"

namespace optim {

struct AdamwOptions : MethodOptions {
  double b1 = 0.9, b2 = 0.999;
  double eps = 1e-8, eps_root = 0;
  device::DType momentum_type = device::DType::f32;
  bool amsgrad = false;
  bool exact_correction = false;

  void bind(config::Table& t) override;
  std::unique_ptr<Method> make(const shard::Fabric& fabric, const Chosen& chosen) const override;
};

// Returns the divisor of the moving average after `step` updates: 1 - b^step in float. The power is
// rounded once from double, so it has the same bits on every machine. exact: the difference is in
// double too; in float it loses digits in the first steps.
float bias_correction(double b, int64_t step, bool exact = false);

}  // namespace optim
