// SPDX-License-Identifier: Apache-2.0
// Lengths of time in training: exactly one of steps, examples, epochs, fraction of the run.
// Conversion and due rule are big_vision's (cappa.md 5.1, 5.2; golden durations.json).
#pragma once

#include <cstdint>

namespace config {

struct Duration {
  enum class Unit { none, steps, examples, epochs, fraction };
  Unit unit = Unit::none;
  double value = 0;

  bool set() const { return unit != Unit::none; }
  // Number of steps: examples and epochs through global_batch and data_size, fraction through
  // total_steps; all but steps are rounded half to even and at least 1. So 0 steps is 0, but 0 in
  // any other unit is 1, as in the published code. none gives `otherwise`.
  int64_t steps(int64_t global_batch, int64_t data_size, int64_t total_steps,
                int64_t otherwise = 0) const;
};

// Is something that happens every `every` steps due at `step`? An event within a quarter period of
// the end is dropped in favour of the one on the last step.
bool is_time(int64_t step, int64_t every, int64_t total, bool last = true, bool first = true,
             double drop_close_to_last = 0.25);

}  // namespace config
