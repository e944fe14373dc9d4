// SPDX-License-Identifier: Apache-2.0
// Finds settings that differ from their default and that a job does not use; none is ignored
// silently. A setting that the deck alone shows to be useless on its device is an error; the others
// are logged.
#pragma once

#include <string>
#include <vector>

#include "device/queue.hpp"
#include "train/recipe.hpp"

namespace train {

struct Unused {
  std::string key, why;  // "run.gemm_search", "applies only to matrix products on GPUs"
};

// Returns the settings that only GPUs use.
std::vector<Unused> only_for_gpus(const Recipe& recipe);
// Returns the settings that only CPUs use.
std::vector<Unused> only_for_cpus(const Recipe& recipe);
// Returns the settings that have no effect because another setting turns them off.
std::vector<Unused> turned_off(const Recipe& recipe);

// Prints a line for each unused setting of a job or a plan that computes on `kind`.
void print_unused(const Recipe& recipe, device::Kind kind);

}  // namespace train
