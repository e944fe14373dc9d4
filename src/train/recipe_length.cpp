// SPDX-License-Identifier: Apache-2.0
// The length of the run, and the checks of lengths against it.
#include "base/text.hpp"
#include "train/recipe.hpp"

namespace train {

int64_t Recipe::total_steps(const DataLength& length, int64_t stream_offset) const {
  if (!train.until_input_ends()) return train.total.steps(train.global_batch, length.epoch, 0, 0);
  const int64_t steps = (length.end - stream_offset) / train.global_batch;
  if (steps < 1)
    base::fail(base::Exit::config,
               "\"input\" ends after {} examples, before the first batch of {}: lower "
               "train.global_batch, or give a number of steps, which reads the data again",
               length.end - stream_offset, train.global_batch);
  return steps;
}

void Recipe::check_lengths(config::Deck& deck, const DataLength& length) const {
  optim::Clock clock{0, train.global_batch, length.epoch};
  try {
    const bool of_data =
        train.total.unit == config::Duration::Unit::epochs || train.until_input_ends();
    if (!of_data || length.epoch > 0) clock.total_steps = total_steps(length);
  } catch (const base::Error& e) {
    deck.error("train.total", e.what());
  }
  for (const optim::Problem& p : optim::schedule_problems(schedule, clock))
    deck.error(p.key, p.text, "train.total");
}

}  // namespace train
