// SPDX-License-Identifier: Apache-2.0
#include "train/attempt.hpp"

#include "base/log_components.hpp"

namespace train {

int64_t Attempt::period(const config::Duration& every) const {
  return every.value == 0 ? 0 : every.steps(recipe.train.global_batch, job.data().size(), total);
}

void Attempt::enter(const char* phase) const {
  base::set_phase(phase);
  base::log::debug(base::log::Component::run, "phase {}", phase);
  if (directory) directory->tell(fmt::format("{} step={}", phase, state.step));
}

}  // namespace train
