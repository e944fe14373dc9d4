// SPDX-License-Identifier: Apache-2.0
// --mode weights: prints whose weights a file holds, and the part of a deck that fits them. The
// file stands in the place of the deck. init.family and init.map choose among several trunks.
#include <cstdio>

#include "checkpoint/weight_report.hpp"
#include "modes/mode.hpp"
#include "modes/selftest_checks.hpp"

namespace modes {
namespace {

int run_weights(Call& call) {
  checkpoint::InitOptions options = call.recipe.init;
  options.from = call.start.deck_path;
  std::fputs(checkpoint::report_weights(options).c_str(), stdout);
  return 0;
}

}  // namespace

Mode weights_row() {
  return {.name = "weights",
          .doc = "what a file of weights holds, and a deck for it; the file replaces the deck",
          .run = run_weights,
          .own_deck = selftest::kSmallDeck,
          .reads_weights = true};
}

}  // namespace modes
