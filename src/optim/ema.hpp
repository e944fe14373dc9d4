// SPDX-License-Identifier: Apache-2.0
// [ema]: an exponential moving average of the trained weights, for evaluation. Frozen and state
// tensors are read from the weights.
#pragma once

#include "config/duration.hpp"
#include "config/table.hpp"
#include "optim/schedule.hpp"
#include "optim/second_weights.hpp"

namespace optim {

struct EmaOptions {
  double decay = 0.9999;
  config::Duration warmup, every{config::Duration::Unit::steps, 1};
  void bind(config::Table& t);
};

// The options in steps.
struct EmaRule {
  double decay = 0;
  int64_t warmup = 0, every = 1;

  EmaRule() = default;
  EmaRule(const EmaOptions& options, const Clock& clock);
  bool due(int64_t step) const { return step % every == 0; }
  // Returns the share of the average that the update at `step` keeps.
  float keep(int64_t step) const;
};

// Returns the average as a second set of weights.
SecondWeights::Options ema_options(const EmaRule& rule);

}  // namespace optim
