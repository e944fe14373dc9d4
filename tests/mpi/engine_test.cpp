// SPDX-License-Identifier: Apache-2.0
// The whole small model through the real engine (run with 1, 2, 3 and 4 ranks). Each rank computes
// alone, in the same process, the numbers that several ranks must reach.
#include "engine_rig.hpp"

namespace {

int run(comm::Session& s, int, char**) {
  tests::session = &s;
  tests::check_draws();
  tests::check_inventory();
  tests::check_cap();
  tests::check_causality();
  tests::check_gradients();
  tests::check_sums();
  tests::check_recompute();
  tests::check_dropout();
  tests::check_frozen();
  tests::check_mixed_strategies();
  tests::check_without_labels();
  tests::check_overlap();
  return tests::conclude("engine");
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
