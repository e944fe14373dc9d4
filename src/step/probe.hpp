// SPDX-License-Identifier: Apache-2.0
// Who looks at the tensors of a step while it runs (Engine::set_probe). A probe reads and changes
// nothing, so a step that is looked at has the same bits.
#pragma once

#include <span>

#include "nn/context.hpp"
#include "optim/optimizer.hpp"

namespace step {

class Probe : public nn::BlockWatch {
 public:
  // The gradients of the step are summed over all ranks. They hold the loss scale of fp16; weights
  // are those before the update.
  virtual void before_update(std::span<const optim::OwnedUnit> units) = 0;
  // Weights are those after the update, or the same ones if the step is not applied.
  virtual void after_update(std::span<const optim::OwnedUnit> units) = 0;
};

}  // namespace step
