// SPDX-License-Identifier: Apache-2.0
// Lengths of time in training, given in exactly one of steps, examples, epochs or a fraction of the
// run. The conversion and the rule for due steps are big_vision's (cappa.md 5.1, 5.2; golden
// durations.json).
#pragma once

#include <cstdint>

namespace config {

struct Duration {
  enum class Unit { none, steps, examples, epochs, fraction };
  Unit unit = Unit::none;
  double value = 0;

  bool set() const { return unit != Unit::none; }
  // Converts to a number of steps. Examples and epochs are divided by global_batch; an epoch has
  // data_size examples. A fraction is multiplied by total_steps. Every unit but steps is rounded
  // half to even and is at least 1, as in the published code: 0 examples give 1 step, 0 steps give
  // 0. Unit::none gives `otherwise`.
  int64_t steps(int64_t global_batch, int64_t data_size, int64_t total_steps,
                int64_t otherwise = 0) const;
};

// True if an event that happens every `every` steps is due at `step`. An event within
// `drop_close_to_last` periods of the last step is dropped in favour of the one on the last step.
bool is_time(int64_t step, int64_t every, int64_t total, bool last = true, bool first = true,
             double drop_close_to_last = 0.25);

}  // namespace config
