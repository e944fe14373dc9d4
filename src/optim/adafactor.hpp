// SPDX-License-Identifier: Apache-2.0
// big_vision's Adafactor (scale_by_adafactor): factored second moments, no bias correction, EMA
// momentum in bfloat16.
#pragma once

#include <string>

#include "kernels/adafactor.hpp"
#include "optim/method.hpp"

namespace optim {

struct AdafactorOptions : MethodOptions {
  double beta2_decay = 0.8;
  double beta2_cap = 0.999;
  int64_t decay_offset = 0;
  double momentum = 0.9;
  std::string momentum_type = "bf16";
  int64_t factor_min = 32;
  double eps = 1e-30;
  double clipping_threshold = 0;

  void bind(config::Table& t) override;
  int64_t element_state_bytes(const std::vector<int64_t>& shape) const override;
  std::unique_ptr<Method> make(const shard::Fabric& fabric) const override;
};

// How a tensor is factored: its two largest dimensions (of equal ones, the last count as larger, as
// in NumPy's argsort), if the second largest has at least `factor_min` elements.
struct Factoring {
  bool factored = false;
  kernels::Factored shape;
  // shapes: without the largest, without the second largest dimension
  std::vector<int64_t> v_row, v_col;
};
Factoring factor(const std::vector<int64_t>& shape, int64_t factor_min);

// Weight of the past in update `step` (the first is 1): min(cap, 1 - t^-decay), in float. 0 in the
// first update.
float adafactor_beta2(int64_t step, int64_t decay_offset, double decay, double cap);

}  // namespace optim
