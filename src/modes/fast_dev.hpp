// SPDX-License-Identifier: Apache-2.0
// --fast-dev N: a trial of the whole program on the deck. A first start trains N steps, runs each
// evaluator once and saves; a second start restores that and trains one step. The numbers are the
// same as in the full run; only the end comes earlier. The run directory of the trial is removed if
// it succeeds.
#pragma once

#include "modes/mode.hpp"

namespace modes {

// Returns a directory beside the run directory. Trials with different tags have different ones.
std::string trial_directory(const std::string& run_directory, const std::string& tag);

// Runs the trial of call.start.trial_steps steps in the deck's run.dir, and returns the exit code.
// All ranks call.
int run_fast_dev(Call& call);

}  // namespace modes
