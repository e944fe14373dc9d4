// trainer DECK: see `trainer --help`. This file is a table of contents.
#include <cstdio>
#include <iostream>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/memory_limit.hpp"
#include "command_line.hpp"
#include "modes/bench.hpp"
#include "modes/index.hpp"
#include "train/failure.hpp"
#include "train/file_check.hpp"
#include "modes/plan.hpp"
#include "train/report.hpp"
#include "modes/show.hpp"
#include "train/stops.hpp"
#include "train/threads.hpp"
#include "train/trainer.hpp"

namespace {

std::unique_ptr<config::Deck> load(const CommandLine& c, train::Recipe& recipe) {
  return std::make_unique<config::Deck>(config::read_deck(c.deck, c.set, c.unset), recipe);
}

void check(const train::Recipe& recipe, config::Deck& deck) {
  if (!deck.problems().any()) recipe.cross_check(deck);
  deck.throw_if_any();
}

// Help and versions go to the output, errors where errors go.
int give(const Answer& answer) {
  if (answer.exit == 0)
    std::cout << answer.text;
  else
    base::log::error("{}", answer.text);
  return answer.exit;
}

// Does the work of one process without MPI.
int look(const CommandLine& c) {
  train::Recipe recipe;
  if (!c.list.empty()) return list_variants(c.list), 0;
  if (c.describe_given) {
    const bool known = print_variants(c.describe);
    std::cout << config::describe([&](config::Table& t) { recipe.bind(t); }, c.describe, !known);
    return 0;
  }
  std::unique_ptr<config::Deck> deck = load(c, recipe);
  check(recipe, *deck);
  recipe.check_tokenizers(*deck);
  if (c.validate) {
    comm::wanted_ranks(recipe.mesh, c.mesh_selector);
    if (c.files) train::check_files(recipe, *deck);
    std::printf("%s: valid\n", c.deck.c_str());
    if (!c.files) train::print_unchecked_files(recipe, *deck);
  }
  if (c.mode == "plan") modes::print_plan(recipe, *deck, c.ranks, c.mesh_selector);
  if (!c.validate && c.mode == "show") modes::show_batch(recipe);
  return !c.validate && c.mode == "index" ? int(modes::report_datasets(recipe)) : 0;
}

int run(int argc, char** argv) {
  const double begin_s = base::now_s();  // from here on limits.wall_time counts
  train::free_main_thread();
  base::share_heap_if_limited();

  // 1. Command line: ranks of one mpirun must have the same, also where only one of them has work to do
  CommandLine c;
  const std::optional<Answer> answer = parse_command_line(argc, argv, c);
  if (answer || c.looks()) {
    if (comm::launched_ranks() > 1) {
      comm::Session session(argc, argv);
      base::set_rank(session.world().rank(), session.world().size());
      if (!agree_on_command(session.world(), c)) return int(base::Exit::config);
    }
    if (comm::launched_rank() > 0) return answer ? answer->exit : 0;
    base::set_rank(0, 1);
    return answer ? give(*answer) : look(c);
  }

  // 2. MPI, and the same deck on every rank: all problems at once
  constexpr int64_t kLibraries = int64_t{160} << 20;  // MPI, HDF5 and their threads
  base::need_address_space(kLibraries, "starting MPI");
  if (c.mode == "train") train::catch_stop_signals({"USR1", "TERM", "HUP"});  // those of the deck are known a little later
  comm::Session session(argc, argv);
  train::catch_fatal_signals();
  base::set_rank(session.world().rank(), session.world().size());
  if (!agree_on_command(session.world(), c)) return int(base::Exit::config);
  train::Recipe recipe;
  std::unique_ptr<config::Deck> deck;
  if (int failed = train::try_on_all(session.world(), [&] { deck = load(c, recipe); })) return failed;
  if (!agree_on_deck(session.world(), c, deck->digest())) return int(base::Exit::config);

  // 3. The run directory, where there is one already: whatever ends this job from here on is in its report
  std::unique_ptr<train::RunDirectory> directory;
  auto open_directory = [&] { directory = train::open_run_directory(session.world(), recipe.run.dir, true); };
  if (int failed = c.mode == "train" ? train::try_on_all(session.world(), open_directory) : 0) return failed;
  if (int failed = train::try_on_all(session.world(), [&] { check(recipe, *deck); })) return failed;

  // 4. Mesh, data, model: refused on one rank, refused on all, before anything runs
  if (c.mode == "bench")
    return train::end_all_on_error(session,
                                   [&] { return modes::run_bench(session, recipe, *deck, c.mesh_selector), 0; });
  train::catch_stop_signals(recipe.limits.signals);
  std::unique_ptr<train::Trainer> trainer;
  if (int failed = train::try_on_all(session.world(), [&] {
        trainer = std::make_unique<train::Trainer>(
            session, recipe, *deck, std::move(directory),
            train::Start{c.deck, c.mesh_selector, int64_t(c.set.size() + c.unset.size()), c.allow_change, begin_s});
      }))
    return failed;

  // 5. The run
  return train::end_all_on_error(session, [&] { return int(trainer->run()); });
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
