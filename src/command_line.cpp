#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "data/op.hpp"
#include "optim/registry.hpp"
#include "train/recipe.hpp"

namespace {

void parse(int argc, char** argv, CLI::App& app, CommandLine& c) {
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
  if (c.ranks && c.mode != "plan")
    throw CLI::ValidationError("--ranks", "is for --mode plan; a run has the ranks that mpirun starts");
  if (own_dir->count() && dir.empty()) throw CLI::ValidationError("--dir", "is empty; name a directory");
  if (own_dir->count()) c.set.push_back(config::text_override("run.dir", dir));
  // What the ranks must agree on; of the deck its bytes, not its path.
  for (const CLI::Option* o : app.get_options())
    if (o->get_name() != "deck") c.given[o->get_name()] = base::join(o->results(), " ");
  if (!c.describe_given && c.list.empty() && c.deck.empty()) throw CLI::RequiredError("deck");
}

}  // namespace

std::optional<int> parse_command_line(int argc, char** argv, CommandLine& c) {
  CLI::App app{"CapPa pretraining on a mesh of MPI ranks"};
  try {
    parse(argc, argv, app, c);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : int(base::Exit::config);
  }
  return {};
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
