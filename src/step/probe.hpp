// SPDX-License-Identifier: Apache-2.0
// Looks at the tensors of a step while it runs (Engine::set_probe). A probe reads and changes
// nothing, so a step that is looked at has the same bits.
#pragma once

#include <span>

#include "nn/context.hpp"
#include "optim/optimizer.hpp"

namespace step {

class Probe : public nn::BlockWatch {
 public:
  // The gradients of the step are summed over all ranks, and still multiplied by the loss scale of
  // fp16. The weights are not yet updated.
  virtual void before_update(std::span<const optim::OwnedUnit> units) = 0;
  // The weights are updated, or unchanged if the step is not applied.
  virtual void after_update(std::span<const optim::OwnedUnit> units) = 0;
};

}  // namespace step
