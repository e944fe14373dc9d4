// SPDX-License-Identifier: Apache-2.0
// big_vision's Adafactor (scale_by_adafactor): factored second moments, no bias correction, EMA
// momentum in bfloat16.
#pragma once

#include "kernels/adafactor.hpp"
#include "optim/method.hpp"

namespace optim {

struct AdafactorOptions : MethodOptions {
  double beta2_decay = 0.8;
  double beta2_cap = 0.999;
  int64_t decay_offset = 0;
  double momentum = 0.9;
  device::DType momentum_type = device::DType::bf16;
  int64_t factor_min = 32;
  double eps = 1e-30;
  double clipping_threshold = 0;

  void bind(config::Table& t) override;
  int64_t element_state_bytes(const std::vector<int64_t>& shape) const override;
  bool reads_gradients_once() const override { return false; }
  std::unique_ptr<Method> make(const shard::Fabric& fabric, const Chosen& chosen) const override;
};

// The factoring of a tensor over its two largest dimensions. The later one of equal dimensions
// counts as larger, as in NumPy's argsort. A tensor is factored if its second largest dimension
// is at least `factor_min`.
struct Factoring {
  bool factored = false;
  kernels::Factored shape;
  std::vector<int64_t> v_row, v_col;  // shapes without the largest, the second largest dimension
};
Factoring factor(const std::vector<int64_t>& shape, int64_t factor_min);

// Returns the weight of the past in update `step`, from 1: min(cap, 1 - t^-decay), in float. It is
// 0 in the first update.
float adafactor_beta2(int64_t step, int64_t decay_offset, double decay, double cap);

}  // namespace optim
