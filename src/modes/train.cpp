// SPDX-License-Identifier: Apache-2.0
// --mode train: the run itself.
#include "job/failure.hpp"
#include "modes/fast_dev.hpp"
#include "modes/mode.hpp"
#include "train/trainer.hpp"

namespace modes {
namespace {

int run_train(Call& call) {
  job::catch_stop_signals(call.recipe.limits.signals);
  if (call.start.trial_steps > 0) return run_fast_dev(call);
  // Mesh, data and model are checked here: if one rank refuses them, all ranks end before anything
  // runs.
  return job::make_and_run(*call.session, [&] {
    return std::make_unique<train::Trainer>(*call.session, call.recipe, call.deck,
                                            std::move(call.directory), call.start);
  });
}

}  // namespace

Mode train_mode() {
  return {.name = "train",
          .doc = "train the model of the deck (the default)",
          .on_ranks = true,
          .keeps_run_directory = true,
          .run = run_train};
}

}  // namespace modes
