// SPDX-License-Identifier: Apache-2.0
// Settings that say something else than their default and that a job makes no use of: nothing is
// ignored in silence. What the deck alone shows to be in vain on its device is an error; the rest
// is told in the log.
#pragma once

#include <string>
#include <vector>

#include "device/queue.hpp"
#include "train/recipe.hpp"

namespace train {

struct Unused {
  std::string key, why;  // "run.gemm_search", "it is about products on GPUs"
};

// Of no use where CPUs compute.
std::vector<Unused> only_for_gpus(const Recipe& recipe);
// Of no use because another setting turns off what they are about.
std::vector<Unused> turned_off(const Recipe& recipe);

// A line for each, in a job or a plan that computes on `kind`.
void print_unused(const Recipe& recipe, device::Kind kind);

}  // namespace train
