// SPDX-License-Identifier: Apache-2.0
// --mode train: the run itself.
#include "job/failure.hpp"
#include "job/hooks.hpp"
#include "modes/cleanup.hpp"
#include "modes/fast_dev.hpp"
#include "modes/mode.hpp"
#include "train/trainer.hpp"

namespace modes {
namespace {

int run_train(Call& call) {
  job::catch_stop_signals(call.recipe.limits.signals);
  if (call.start.trial_steps > 0) return run_fast_dev(call);
  comm::Comm& world = call.session->world();
  const std::string& directory = call.recipe.run.dir;
  if (call.cleanup)
    if (const int failed = job::try_on_all(world, [&] { check_cleanup(world, directory); }))
      return failed;
  job::Hooks hooks(call.recipe.hooks, call.recipe.run.name, call.recipe.watch.limit_s);
  if (call.directory) job::Hooks::use(directory);
  // Mesh, data and model are checked here: if one rank refuses them, all ranks end before anything
  // runs.
  const int code = job::make_and_run(*call.session, [&] {
    return std::make_unique<train::Trainer>(*call.session, call.recipe, call.deck,
                                            std::move(call.directory), call.start);
  });
  if (code == 0 && call.cleanup) clean_up(world, directory);
  return code;
}

}  // namespace

Mode train_row() {
  return {.name = "train",
          .doc = "train the model of the deck (the default)",
          .on_ranks = true,
          .keeps_run_directory = true,
          .run = run_train};
}

}  // namespace modes
