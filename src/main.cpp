// trainer DECK: see `trainer --help`. This file is a table of contents.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "data/op.hpp"
#include "optim/registry.hpp"
#include "train/bench.hpp"
#include "train/dataset_report.hpp"
#include "train/plan.hpp"
#include "train/report.hpp"
#include "train/show.hpp"
#include "train/stops.hpp"
#include "train/trainer.hpp"

namespace {

struct CommandLine {
  std::string deck, mode = "train", mesh_selector, describe, list;
  std::vector<std::string> set, allow_change;
  std::map<std::string, std::string> given;  // options by name
  int ranks = 0;
  bool validate = false, describe_given = false;
};

CommandLine parse_command_line(int argc, char** argv, CLI::App& app) {
  CommandLine c;
  std::string dir;
  app.add_option("deck", c.deck, "TOML deck (inputs/*.toml)");
  app.add_option("--set", c.set, "KEY=VALUE: replace a key of the deck, e.g. optimizer.learning_rate=5e-4; repeatable")
      ->allow_extra_args(false);
  app.add_option("--allow-change", c.allow_change,
                 "KEY or table that may differ from the deck this run was started with; repeatable")
      ->allow_extra_args(false);
  CLI::Option* own_dir = app.add_option("--dir", dir, "run directory; short for --set run.dir=DIR");
  app.add_option("--mode", c.mode,
                 "train, bench (time per op), or without mpirun: plan (memory, FLOPs, traffic, disk), show (a batch as "
                 "the model sees it, to DIR/show.h5), index (what the data sets hold, to DIR/datasets.json)")
      ->check(CLI::IsMember({"train", "plan", "bench", "show", "index"}));
  app.add_option("--ranks", c.ranks, "number of ranks to plan for (--mode plan)")
      ->check(CLI::Range(1, comm::kMostRanks));
  app.add_option("--mesh-selector", c.mesh_selector, "picks a [[mesh.rule]]")->envname("TRAINER_MESH_SELECTOR");
  app.add_flag("--validate", c.validate, "check the deck and stop");
  CLI::Option* describe =
      app.add_option("--describe", c.describe, "explain all keys, or those that start with KEY")->expected(0, 1);
  app.add_option("--list", c.list,
                 "names of registered variants: model, optimizer, schedule, data, op, tokenizer, evaluator")
      ->check(CLI::IsMember({"model", "optimizer", "schedule", "data", "op", "tokenizer", "evaluator"}));
  app.parse(argc, argv);
  c.describe_given = describe->count() > 0;
  if (own_dir->count() && dir.empty()) throw CLI::ValidationError("--dir", "is empty; name a directory");
  if (own_dir->count()) c.set.push_back(config::text_override("run.dir", dir));
  // What the ranks must agree on; of the deck its bytes, not its path.
  for (const CLI::Option* o : app.get_options())
    if (o->get_name() != "deck") c.given[o->get_name()] = base::join(o->results(), " ");
  if (!c.describe_given && c.list.empty() && c.deck.empty()) throw CLI::RequiredError("deck");
  return c;
}

void list_variants(const std::string& what) {
  auto row = [](const std::string& name, const std::string& doc) {
    std::printf("%-24s %s\n", name.c_str(), doc.c_str());
  };
  if (what == "model")
    for (const auto& r : models::registry()) row(r.name, r.doc);
  if (what == "optimizer")
    for (const auto& r : optim::methods()) row(r.name, r.doc);
  if (what == "schedule")
    for (const auto& name : optim::schedule_kinds()) row(name, "");
  if (what == "data")
    for (const auto& r : data::source_rows()) row(r.name, r.doc);
  if (what == "op")
    for (const auto& r : data::op_rows()) {
      std::printf("%s\n    %s\n", data::signature(r).c_str(), r.doc.c_str());
      for (const data::Parameter& p : r.parameters)
        if (!p.name.ends_with("key")) std::printf("      %-14s %s\n", p.name.c_str(), p.doc.c_str());
    }
  if (what == "tokenizer")
    for (const auto& r : data::tokenizer_rows()) row(r.name, r.doc);
  if (what == "evaluator")
    for (const auto& r : eval::registry()) row(r.name, r.doc);
}

// Ranks that fail in different ways must end together: the first cause (lowest rank) is printed, and its code is
// everybody's.
int agree_on_failure(comm::Comm& world, int code, const std::string& text) {
  if (world.max(int64_t(code)) == 0) return 0;
  std::vector<std::string> texts = world.gather_text(text);
  std::vector<std::string> codes = world.gather_text(std::to_string(code));
  for (size_t r = 0; r < texts.size(); ++r)
    if (codes[r] != "0") {
      if (world.rank() == int(r)) base::log::error("{}", text);
      return std::stoi(codes[r]);
    }
  return int(base::Exit::internal);
}

// mpirun can start each rank with a command line, an environment and a file system of its own.
bool agree_on_command(comm::Comm& world, const CommandLine& c, const std::string& digest) {
  std::string all = digest;
  for (const auto& [option, value] : c.given) all += fmt::format("\n{} {}", option, value);
  if (world.same(base::xxh3(all))) return true;
  std::string differs;
  for (const auto& [option, value] : c.given) {
    std::vector<std::string> values = world.gather_text(value);
    auto other = std::find_if(values.begin(), values.end(), [&](const std::string& v) { return v != values[0]; });
    if (other == values.end()) continue;
    differs += fmt::format("\n{}{}: rank 0 has \"{}\", rank {} has \"{}\"", option,
                           option == "--mesh-selector" ? " (or $TRAINER_MESH_SELECTOR)" : "", values[0],
                           other - values.begin(), *other);
  }
  if (world.rank() == 0)
    base::log::error("the ranks were not started alike; give all of them the same{}",
                     differs.empty() ? fmt::format("\n{}: they see different bytes of the deck", c.deck) : differs);
  return false;
}

void tell_error(int code, const std::string& text) {
  train::write_report(code, text);
  base::log::error("step {} ({}): {}", base::where().step, base::where().phase, text);
}

// An error of one rank ends the job while everything of this rank still stands: destructors might wait for other ranks,
// which wait for this one.
template <class Work>
int end_all_on_error(comm::Session& session, Work work) {
  int code = int(base::Exit::internal);
  try {
    return int(work());
  } catch (const base::Error& e) {
    code = int(e.code());
    // What all ranks throw, one tells, before another one ends the job.
    bool tells = !e.agreed() || session.world().rank() == 0;
    if (tells) tell_error(code, e.what());
    if (e.agreed()) session.world().barrier();
  } catch (const std::bad_alloc&) {
    tell_error(code, "out of memory");
  } catch (const std::exception& e) {
    tell_error(code, e.what());
  }
  if (session.world().size() > 1) comm::Session::abort(code);
  return code;
}

int run(int argc, char** argv) {
  // 1. Command line
  CLI::App app{"CapPa pretraining on a mesh of MPI ranks"};
  CommandLine c;
  try {
    c = parse_command_line(argc, argv, app);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : int(base::Exit::config);
  }
  if (!c.list.empty()) return list_variants(c.list), 0;
  train::Recipe recipe;
  if (c.describe_given) {
    std::cout << config::describe([&](config::Table& t) { recipe.bind(t); }, c.describe);
    return 0;
  }

  // 2. Deck: all problems at once. What only looks needs no ranks.
  auto load = [&]() {
    auto deck = std::make_unique<config::Deck>(config::read_deck(c.deck, c.set), recipe);
    if (!deck->problems().any()) recipe.cross_check(*deck);
    deck->throw_if_any();
    return deck;
  };
  if (c.validate || c.mode == "plan" || c.mode == "show" || c.mode == "index") {
    auto deck = load();
    recipe.check_tokenizers(*deck);
    if (c.validate) std::printf("%s: valid\n", c.deck.c_str());
    if (c.mode == "plan") train::print_plan(recipe, *deck, c.ranks, c.mesh_selector);
    if (!c.validate && c.mode == "show") train::show_batch(recipe);
    return !c.validate && c.mode == "index" ? int(train::report_datasets(recipe)) : 0;
  }

  // 3. MPI, and the same deck on every rank
  if (c.mode == "train") train::catch_stop_signals({"USR1", "TERM"});  // those of the deck are known a little later
  comm::Session session(argc, argv);
  train::catch_fatal_signals();
  base::set_rank(session.world().rank(), session.world().size());
  std::unique_ptr<config::Deck> deck;
  int code = 0;
  std::string text;
  try {
    deck = load();
  } catch (const base::Error& e) {
    code = int(e.code()), text = e.what();
  }
  if (int agreed = agree_on_failure(session.world(), code, text)) return agreed;
  if (!agree_on_command(session.world(), c, deck->digest())) return int(base::Exit::config);

  // 4. Mesh, data, model: refused on one rank, refused on all, before anything runs
  if (c.mode == "bench")
    return end_all_on_error(session,
                            [&] { return train::run_bench(session, recipe, c.mesh_selector), base::Exit::finished; });
  train::catch_stop_signals(recipe.limits.signals);
  std::unique_ptr<train::Trainer> trainer;
  try {
    trainer = std::make_unique<train::Trainer>(
        session, recipe, *deck, train::Start{c.deck, c.mesh_selector, int64_t(c.set.size()), c.allow_change});
  } catch (const base::Error& e) {
    code = int(e.code()), text = e.what();
  }
  if (int agreed = agree_on_failure(session.world(), code, text)) return agreed;

  // 5. The run
  return end_all_on_error(session, [&] { return trainer->run(); });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const base::Error& e) {
    base::log::error("{}", e.what());
    return int(e.code());
  } catch (const std::exception& e) {
    base::log::error("{}", e.what());
    return int(base::Exit::internal);
  }
}
