// SPDX-License-Identifier: Apache-2.0
#include "modes/fast_dev.hpp"

#include "base/log.hpp"
#include "comm/together.hpp"
#include "io/files.hpp"
#include "job/failure.hpp"
#include "train/trainer.hpp"

namespace modes {
namespace log = base::log;

namespace {

// Returns the outermost directory that must be made for `path`.
std::string first_missing(std::string path) {
  while (!io::exists(io::parent_of(path))) path = io::parent_of(path);
  return path;
}

// Runs one start of the trial to `last_step`.
int start_once(Call& call, int64_t last_step, bool evaluates) {
  train::Start start = call.start;
  start.trial_steps = last_step;
  start.trial_evaluates = evaluates;
  return job::make_and_run(*call.session, [&] {
    return std::make_unique<train::Trainer>(*call.session, call.recipe, call.deck,
                                            std::move(call.directory), start);
  });
}

}  // namespace

std::string trial_directory(const std::string& run_directory, const std::string& tag) {
  std::string path = run_directory;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path + ".fast-dev-" + tag;
}

int run_fast_dev(Call& call) {
  comm::Comm& world = call.session->world();
  const std::string& directory = call.recipe.run.dir;
  const int64_t steps = call.start.trial_steps;
  const std::string made = comm::on_first(world, [&] { return first_missing(directory); });
  for (const bool again : {false, true})
    if (const int code = start_once(call, steps + again, !again); code != 0) {
      if (world.rank() == 0)
        log::warning("fast-dev: the {} start ended with exit {}; its files are in {}",
                     again ? "second" : "first", code, directory);
      return code;
    }
  // Files of the log are open on every rank.
  log::close_files();
  world.barrier();
  comm::on_first(world, [&] {
    io::remove_tree(directory);
    // Parents that others have filled meanwhile stay.
    for (std::string path = directory; path != made && io::remove_directory(io::parent_of(path));)
      path = io::parent_of(path);
    return std::string();
  });
  log::line(
      "fast-dev {} steps, {} evaluations, a checkpoint, and in a second start its restore and one "
      "more step; {} was removed",
      steps, call.recipe.evaluations().size(), directory);
  return 0;
}

}  // namespace modes
