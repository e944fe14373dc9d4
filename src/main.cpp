// trainer DECK: see `trainer --help`. This file is a table of contents.
#include <cstdio>
#include <iostream>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/memory_limit.hpp"
#include "command_line.hpp"
#include "train/bench.hpp"
#include "train/dataset_report.hpp"
#include "train/failure.hpp"
#include "train/plan.hpp"
#include "train/report.hpp"
#include "train/show.hpp"
#include "train/stops.hpp"
#include "train/threads.hpp"
#include "train/trainer.hpp"

namespace {

int run(int argc, char** argv) {
  const double begin_s = base::now_s();  // from here on limits.wall_time counts
  train::free_main_thread();
  base::share_heap_if_limited();

  // 1. Command line
  CommandLine c;
  if (std::optional<int> exit = parse_command_line(argc, argv, c)) return *exit;
  if (!c.list.empty()) return list_variants(c.list), 0;
  train::Recipe recipe;
  if (c.describe_given) {
    std::cout << config::describe([&](config::Table& t) { recipe.bind(t); }, c.describe);
    return 0;
  }

  // 2. Deck: all problems at once. What only looks needs no ranks.
  std::unique_ptr<config::Deck> deck;
  auto load = [&]() { deck = std::make_unique<config::Deck>(config::read_deck(c.deck, c.set), recipe); };
  auto check = [&]() {
    if (!deck->problems().any()) recipe.cross_check(*deck);
    deck->throw_if_any();
  };
  if (c.validate || c.mode == "plan" || c.mode == "show" || c.mode == "index") {
    if (comm::launched_rank() > 0) return 0;  // one does it
    load(), check();
    recipe.check_tokenizers(*deck);
    if (c.validate) {
      comm::wanted_ranks(recipe.mesh, c.mesh_selector);
      std::printf("%s: valid\n", c.deck.c_str());
    }
    if (c.mode == "plan") train::print_plan(recipe, *deck, c.ranks, c.mesh_selector);
    if (!c.validate && c.mode == "show") train::show_batch(recipe);
    return !c.validate && c.mode == "index" ? int(train::report_datasets(recipe)) : 0;
  }

  // 3. MPI, and the same deck on every rank
  constexpr int64_t kLibraries = int64_t{160} << 20;  // MPI, HDF5 and their threads
  base::need_address_space(kLibraries, "starting MPI");
  if (c.mode == "train") train::catch_stop_signals({"USR1", "TERM", "HUP"});  // those of the deck are known a little later
  comm::Session session(argc, argv);
  train::catch_fatal_signals();
  base::set_rank(session.world().rank(), session.world().size());
  if (int failed = train::try_on_all(session.world(), load)) return failed;
  if (!agree_on_command(session.world(), c, deck->digest())) return int(base::Exit::config);

  // 4. The run directory, where there is one already: whatever ends this job from here on is in its report
  std::unique_ptr<train::RunDirectory> directory;
  auto open_directory = [&] { directory = train::open_run_directory(session.world(), recipe.run.dir, true); };
  if (int failed = c.mode == "train" ? train::try_on_all(session.world(), open_directory) : 0) return failed;
  if (int failed = train::try_on_all(session.world(), check)) return failed;

  // 5. Mesh, data, model: refused on one rank, refused on all, before anything runs
  if (c.mode == "bench")
    return train::end_all_on_error(session,
                                   [&] { return train::run_bench(session, recipe, *deck, c.mesh_selector), 0; });
  train::catch_stop_signals(recipe.limits.signals);
  std::unique_ptr<train::Trainer> trainer;
  if (int failed = train::try_on_all(session.world(), [&] {
        trainer = std::make_unique<train::Trainer>(
            session, recipe, *deck, std::move(directory),
            train::Start{c.deck, c.mesh_selector, int64_t(c.set.size()), c.allow_change, begin_s});
      }))
    return failed;

  // 6. The run
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
