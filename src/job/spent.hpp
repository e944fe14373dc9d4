// SPDX-License-Identifier: Apache-2.0
// What the time of a process was spent on.
#pragma once

#include <array>
#include <cstddef>

namespace job {

// Seconds by kind. `data` and `exchange` are parts of `training`: rank 0 waited for them.
struct Spent {
  enum Kind : size_t { setup, training, evaluation, checkpoint, redone, data, exchange, kKinds };
  static constexpr size_t kParts = data;  // kinds before this one add up to all of the time

  std::array<double, kKinds> by{};

  double& operator[](Kind kind) { return by[kind]; }
  double operator[](Kind kind) const { return by[kind]; }
  double total() const;
  // Returns this minus an earlier state of the same process; nothing is negative.
  Spent since(const Spent& before) const;
  Spent& operator+=(const Spent& more);
  // Turns all time since `kept` into redone, because the run goes on from a state of that time.
  void lose_since(const Spent& kept);
};

inline constexpr std::array<const char*, Spent::kKinds> kSpentNames = {
    "setup", "training", "evaluation", "checkpoint", "redone", "data", "exchange"};

// Writes the sums to the flight page, so that they outlive the process.
void keep_spent(const Spent& spent);
// Returns the kind of time that passes in a phase (base::set_phase).
Spent::Kind kind_of_phase(const char* phase);

}  // namespace job
