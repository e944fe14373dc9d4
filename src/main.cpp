// SPDX-License-Identifier: Apache-2.0
// trainer DECK: see `trainer --help`. This file is a table of contents.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "base/log.hpp"
#include "base/memory_limit.hpp"
#include "base/process_start.hpp"
#include "base/thread_scope.hpp"
#include "checkpoint/weight_file.hpp"
#include "command_line.hpp"
#include "host/threads.hpp"
#include "io/files.hpp"
#include "job/failure.hpp"
#include "job/failure_report.hpp"
#include "job/stops.hpp"
#include "job/watchdog.hpp"
#include "modes/fast_dev.hpp"
#include "modes/mode.hpp"
#include "modes/run_deck.hpp"
#include "train/file_check.hpp"

namespace {

std::unique_ptr<config::Deck> load(const CommandLine& c, train::Recipe& recipe) {
  const modes::Mode& mode = modes::registry().at(c.mode);
  if (mode.own_deck && (c.deck.empty() || mode.reads_weights))
    return std::make_unique<config::Deck>(
        config::DeckSource{"the deck of --mode " + c.mode, mode.own_deck, c.set, c.unset}, recipe);
  if (io::exists(c.deck) && checkpoint::has_weights_alone(c.deck))
    base::fail(base::Exit::config,
               "{} holds weights and no deck. Name it in a deck: init.from to train on from it, "
               "evaluate.from or extract.from to use it. --mode weights prints the deck's keys for "
               "it",
               c.deck);
  const char* from = mode.images_from;
  return std::make_unique<config::Deck>(from && modes::holds_deck(c.deck)
                                            ? modes::read_run_deck(c.deck, from, c.set, c.unset)
                                            : config::read_deck(c.deck, c.set, c.unset),
                                        recipe);
}

void check(const train::Recipe& recipe, config::Deck& deck) {
  if (!deck.problems().any()) recipe.cross_check(deck);
  deck.throw_if_any();
}

// Prints help and versions to the output, and logs errors.
int give(const Answer& answer) {
  if (answer.exit == 0)
    std::cout << answer.text;
  else
    base::log::error("{}", answer.text);
  return answer.exit;
}

// Gives the answer on rank 0. The other ranks wait: the launcher ends rank 0 when another rank ends
// with an error.
int give_once(comm::Comm& world, const Answer& answer) {
  if (world.rank() == 0) {
    base::set_rank(0, 1);
    give(answer);
    std::cout.flush();
  }
  world.barrier();
  return answer.exit;
}

modes::Call call_of(const CommandLine& c, const train::Recipe& recipe, config::Deck& deck,
                    double begin_s) {
  const int64_t overrides = int64_t(c.set.size() + c.unset.size());
  return {.recipe = recipe,
          .deck = deck,
          .start = {c.deck, c.mesh_selector, overrides, c.allow_change, begin_s, c.fast_dev},
          .ranks = c.ranks,
          .graph = c.graph,
          .cleanup = c.cleanup,
          .images = c.images,
          .json = c.json};
}

// Explains keys. A name that matches neither a key nor a variant is an error.
int describe(const CommandLine& c) {
  train::Recipe recipe;
  const bool known = print_variants(c.describe);
  std::cout << config::describe([&](config::Table& t) { recipe.bind(t); }, c.describe, !known);
  return 0;
}

// Does the work of one process without MPI.
int look(const CommandLine& c, double begin_s) {
  if (!c.list.empty()) {
    list_variants(c.list);
    return 0;
  }
  if (c.describe_given) return describe(c);
  train::Recipe recipe;
  std::unique_ptr<config::Deck> deck = load(c, recipe);
  check(recipe, *deck);
  recipe.check_tokenizers(*deck);
  const modes::Mode& mode = modes::registry().at(c.mode);
  modes::Call call = call_of(c, recipe, *deck, begin_s);
  if (!c.validate) return mode.run(call);
  comm::wanted_ranks(recipe.mesh, c.mesh_selector);
  if (c.files) train::check_files(recipe, *deck);
  std::printf("%s: valid\n", c.deck.c_str());
  if (!c.files) train::print_unchecked_files(recipe, *deck);
  return mode.on_paper ? mode.run(call) : 0;
}

int run(int argc, char** argv) {
  const double begin_s = base::process_start_s();  // limits.wall_time counts from here
  base::register_main_thread();
  base::set_phase("start");
  host::free_main_thread();
  base::share_heap_if_limited();

  // 1. Command line: the ranks of one mpirun must have the same options, even if only one rank
  // works.
  CommandLine c;
  const std::optional<Answer> answer = parse_command_line(argc, argv, c);
  if (answer || c.looks()) {
    if (comm::launched_ranks() > 1) {
      comm::Session session(argc, argv);
      base::set_rank(session.world().rank(), session.world().size());
      if (!agree_on_command(session.world(), c)) return int(base::Exit::config);
      if (answer) return give_once(session.world(), *answer);
    }
    if (comm::launched_rank() > 0) return 0;
    base::set_rank(0, 1);
    return answer ? give(*answer) : look(c, begin_s);
  }

  // 2. MPI, and the same deck on every rank; all its problems are reported at once.
  constexpr int64_t kLibraries = int64_t{160} << 20;  // MPI, HDF5 and their threads
  base::need_address_space(kLibraries, "starting MPI");
  const modes::Mode& mode = modes::registry().at(c.mode);
  // The deck's own signals replace these once the deck has been read.
  if (mode.keeps_run_directory) job::catch_stop_signals({"USR1", "TERM", "HUP"});
  job::leave_signals_to_watchdog();  // before MPI starts threads
  comm::Session session(argc, argv);
  comm::Comm& world = session.world();
  job::catch_fatal_signals();
  base::set_rank(world.rank(), world.size());
  if (!agree_on_command(world, c)) return int(base::Exit::config);
  train::Recipe recipe;
  std::unique_ptr<config::Deck> deck;
  auto read_deck = [&] { deck = load(c, recipe); };
  if (int failed = job::try_on_all(world, read_deck)) return failed;
  if (c.fast_dev > 0) {  // once more, with a directory of its own
    const std::string tag = world.broadcast_text(std::to_string(::getpid()), 0);
    c.set.push_back(config::text_override("run.dir", modes::trial_directory(recipe.run.dir, tag)));
    c.set.push_back(config::text_override("checkpoint.resume", "auto"));
    recipe = train::Recipe();
    if (int failed = job::try_on_all(world, read_deck)) return failed;
  }
  if (!agree_on_deck(world, c, deck->digest())) return int(base::Exit::config);
  const job::Watchdog watchdog(session, recipe.watch);

  // 3. The run directory, if it exists: from here on its report holds whatever ends this job.
  modes::Call call = call_of(c, recipe, *deck, begin_s);
  call.session = &session;
  auto open_directory = [&] {
    call.directory = job::open_run_directory(world, recipe.run.dir, true);
  };
  if (int failed = mode.keeps_run_directory ? job::try_on_all(world, open_directory) : 0)
    return failed;
  if (int failed = job::try_on_all(world, [&] { check(recipe, *deck); })) return failed;

  // 4. The mode.
  return mode.run(call);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const base::Error& e) {
    base::log::error("{}", e.what());
    return int(e.code());
  } catch (const std::exception& e) {
    const base::Error error = base::error_of(e);
    base::log::error("{}", error.what());
    return int(error.code());
  }
}
