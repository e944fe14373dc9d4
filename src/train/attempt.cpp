// SPDX-License-Identifier: Apache-2.0
#include "train/attempt.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "train/phases.hpp"

namespace train {

void Attempt::find_total() {
  total = recipe.total_steps(job.data_length(), state.progress.stream_offset);
  if (start.trial_steps > 0) total = std::min(total, start.trial_steps);
}

int64_t Attempt::epochs_ended(int64_t step) const {
  const int64_t seen = state.examples_seen(step), size = job.data().size();
  return step == total ? base::ceil_div(seen, size) : seen / size;
}

bool Attempt::test_follows(int64_t step) const {
  const int64_t every = recipe.train.test_every;
  return every > 0 &&
         (step == total || tested_within(epochs_ended(step - 1), epochs_ended(step), every));
}

int64_t Attempt::period(const config::Duration& every) const {
  return every.value == 0 ? 0 : every.steps(recipe.train.global_batch, job.data().size(), total);
}

void Attempt::enter(const char* phase) const {
  base::set_phase(phase);
  if (directory) directory->tell(fmt::format("{} step={}", phase, state.step));
}

}  // namespace train
