// SPDX-License-Identifier: Apache-2.0
// The model that --mode selftest runs: the deck's or a small one, on a few made-up examples.
#pragma once

#include <map>
#include <string>

#include "step/engine.hpp"
#include "train/recipe.hpp"

namespace modes::selftest {

using Features = std::map<std::string, models::FeatureSpec>;

// Makes the examples at [first, first + n), each a pure function of its position and `seed`.
models::HostBatch made_batch(const Features& features, uint64_t seed, int64_t first, int64_t n);

// Returns the settings of an engine for this recipe with `each` examples in a slice; a rank has at
// least one slice. If `ranks` is a power of two, the level is "mesh".
step::EngineOptions engine_options(train::Recipe recipe, int ranks, int64_t each, int threads,
                                   device::Kind kind);

// What a step of the engine needs, by plan.
struct Needs {
  int64_t each = 0;     // examples in a slice
  int64_t bytes = 0;    // largest memory of a rank
  double flops = 0;     // of one step of all ranks
  std::string problem;  // why the model cannot be checked; "" if it can
};

// Plans such engines on the meshes 1 x ranks and ranks x 1, and finds the smallest slices that the
// model accepts.
Needs plan_needs(const train::Recipe& recipe, int ranks, int threads, device::Kind kind);

}  // namespace modes::selftest
