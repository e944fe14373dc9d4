// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <sstream>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/text.hpp"
#include "data/ops/op.hpp"
#include "models/part_lists.hpp"
#include "modes/mode.hpp"
#include "optim/phases.hpp"
#include "optim/registry.hpp"
#include "train/console.hpp"
#include "train/recipe.hpp"

namespace {

const std::vector<std::string> kLists = {"model",     "trunk",     "head",  "loss", "measure",
                                         "optimizer", "schedule",  "phase", "data", "op",
                                         "tokenizer", "evaluator", "mode"};

constexpr const char* kExamples = R"(Examples:
  mpirun -np 4 trainer inputs/emoji.toml                     train; the same command continues after a stop
  trainer inputs/emoji.toml --validate --files               check deck and files
  trainer inputs/emoji.toml --mode plan --ranks 64           memory, traffic and disk on 64 ranks
  trainer runs/emoji --mode caption photo.jpg                caption images with the weights of a run
  trainer inputs/emoji.toml --set optimizer.learning_rate=5e-4 --dir runs/second
  mpirun -np 64 trainer inputs/emoji.toml --mode selftest    check nodes, network and disk before a run
  trainer --describe optimizer                               explain keys; also a name: --describe adamw
  trainer --list schedule                                    what kind = "..." may be
)";

// Adds the options that select what is trained.
void add_deck_options(CLI::App& app, CommandLine& c, std::string& dir) {
  const std::string group = "The deck";
  app.add_option("deck", c.deck,
                 "TOML deck (inputs/*.toml); --mode caption: also a run or checkpoint; --mode "
                 "weights: a file of weights");
  app.add_option("images", c.images, "--mode caption: image files and folders")->type_name("IMAGE");
  app.add_option("--set", c.set,
                 "replace a key of the deck, e.g. optimizer.learning_rate=5e-4; repeatable")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE")
      ->group(group);
  app.add_option("--unset", c.unset,
                 "remove a key or table of the deck, before --set applies; repeatable")
      ->allow_extra_args(false)
      ->type_name("KEY")
      ->group(group);
  app.add_option("--dir", dir, "run directory; short for --set run.dir=DIR")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--allow-change", c.allow_change,
                 "key or table that may differ from the deck this run was started with; repeatable")
      ->allow_extra_args(false)
      ->type_name("KEY")
      ->group(group);
  app.add_option("--mesh-selector", c.mesh_selector, "picks a [[mesh.rule]]")
      ->type_name("NAME")
      ->envname("TRAINER_MESH_SELECTOR")
      ->group(group);
}

// Returns a line for each mode: "bench: time per op".
std::string mode_lines() {
  std::string text;
  for (const modes::Mode& mode : modes::registry())
    text += fmt::format("{}{}: {}{}", text.empty() ? "" : "\n", mode.name, mode.doc,
                        mode.on_ranks ? "" : " (without mpirun)");
  return text;
}

// Adds the options that select the action.
void add_mode_options(CLI::App& app, CommandLine& c) {
  const std::string run = "What to do", ask = "Explanations";
  app.add_option("--mode", c.mode, mode_lines())
      ->check(CLI::IsMember(modes::registry().names()))
      ->group(run);
  app.add_option("--ranks", c.ranks, "number of ranks to plan for (--mode plan)")
      ->check(CLI::Range(1, comm::kMostRanks))
      ->group(run);
  app.add_option("--graph", c.graph,
                 "file for the graph of a step (--mode plan), which dot -Tsvg draws")
      ->type_name("FILE")
      ->group(run);
  app.add_option("--fast-dev", c.fast_dev,
                 "try everything: N steps, each evaluator, a save and its restore, in a run "
                 "directory that is removed")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N")
      ->group(run);
  app.add_flag("--cleanup", c.cleanup,
               "after a run that has finished: remove what it wrote into its run directory")
      ->group(run);
  app.add_flag("--json", c.json, "--mode selftest: print one JSON object instead of a table")
      ->group(run);
  app.add_flag("--validate", c.validate, "check the deck and stop")->group(run);
  app.add_flag("--files", c.files, "with --validate: look at the files that the deck names as well")
      ->group(run);
  app.add_option("--describe", c.describe,
                 "explain all keys, those of a table or key, a variant such as adamw, or keys with "
                 "a word of NAME")
      ->expected(0, 1)
      ->type_name("[NAME]")
      ->group(ask);
  app.add_option("--list", c.list, "names of registered variants, measures and modes")
      ->check(CLI::IsMember(kLists))
      ->group(ask);
  app.set_help_flag("-h,--help", "print this help")->group(ask);
  // Made only if asked for: whoever asks oneDNN for instructions can no longer limit them
  // (run.cpu).
  app.set_version_flag(
         "--version",
         [] {
           return train::version_line() + "\n" + train::build_features() + "\n" +
                  train::library_features();
         },
         "print version and build")
      ->group(ask);
}

void parse(int argc, char** argv, CLI::App& app, CommandLine& c) {
  std::string dir;
  add_deck_options(app, c, dir);
  add_mode_options(app, c);
  app.footer(kExamples);
  app.parse(argc, argv);
  c.describe_given = app.count("--describe") > 0;
  const bool takes_images = modes::registry().at(c.mode).images_from != nullptr;
  if (!c.images.empty() && !takes_images)
    throw CLI::ExtrasError({c.images.rbegin(), c.images.rend()});
  if (c.ranks && !modes::registry().at(c.mode).on_paper)
    throw CLI::ValidationError("--ranks",
                               "is for --mode plan; a run has the ranks that mpirun starts");
  if (!c.graph.empty() && c.mode != "plan")
    throw CLI::ValidationError("--graph", "is for --mode plan");
  if (c.fast_dev && c.mode != "train")
    throw CLI::ValidationError("--fast-dev", "is for --mode train");
  if (c.fast_dev && c.validate)
    throw CLI::ValidationError(
        "--fast-dev", "trains, so it cannot be combined with --validate, which only checks");
  if (c.cleanup && (c.mode != "train" || c.validate))
    throw CLI::ValidationError("--cleanup", "is for runs (--mode train)");
  if (c.cleanup && c.fast_dev)
    throw CLI::ValidationError("--cleanup", "is not needed: --fast-dev removes its directory");
  if (c.files && !c.validate) throw CLI::ValidationError("--files", "is for --validate");
  if (app.count("--dir") && dir.empty())
    throw CLI::ValidationError("--dir", "is empty; name a directory");
  if (app.count("--dir")) c.set.push_back(config::text_override("run.dir", dir));
  if (c.json && !modes::registry().at(c.mode).prints_json)
    throw CLI::ValidationError("--json", "is for --mode selftest");
  const modes::Mode& mode = modes::registry().at(c.mode);
  if (c.validate && mode.reads_weights)
    throw CLI::ValidationError("--validate", "checks decks; --mode weights reads no deck");
  const bool needs_deck = c.validate || !mode.own_deck || mode.reads_weights;
  if (!c.describe_given && c.list.empty() && c.deck.empty() && needs_deck)
    throw CLI::RequiredError("deck");
  for (const auto& [option, paths] : {std::pair("deck", std::vector{c.deck}), {"images", c.images}})
    for (const std::string& path : paths)
      if (const std::string problem = base::name_problem(path); !problem.empty())
        throw CLI::ValidationError(option, problem);
  if (app.count("--dir"))
    if (const std::string problem = base::path_problem(dir); !problem.empty())
      throw CLI::ValidationError("--dir", problem);
  if (takes_images && c.images.empty() && !c.validate && !c.deck.empty())
    throw CLI::ValidationError("images", "name files or folders of images after the deck");
}

struct Variant {
  std::string list, name, doc;
};

std::vector<Variant> variants() {
  std::vector<Variant> out;
  auto add = [&](const char* list, const auto& rows) {
    for (const auto& r : rows) out.push_back({list, r.name, r.doc});
  };
  add("model", models::registry());
  add("trunk", models::trunk_parts());
  add("head", models::head_parts());
  add("loss", models::loss_parts());
  add("measure", models::measure_parts());
  add("measure", records::train_metrics());
  add("measure", records::eval_metrics());
  add("optimizer", optim::methods());
  add("schedule", optim::schedule_rows());
  add("phase", optim::phase_rows());
  add("data", data::source_rows());
  add("op", data::op_rows());
  add("tokenizer", data::tokenizer_rows());
  add("evaluator", eval::registry());
  add("mode", modes::registry());
  return out;
}

void print_op(const std::string& name) {
  for (const data::OpRow& r : data::op_rows()) {
    if (r.name != name) continue;
    std::printf("%s\n    %s\n", data::signature(r).c_str(), r.doc.c_str());
    for (const data::Parameter& p : r.parameters)
      if (!p.name.ends_with("key")) std::printf("      %-14s %s\n", p.name.c_str(), p.doc.c_str());
  }
}

// Returns one line per option, for comparing ranks. The deck's bytes are compared elsewhere; its
// path may differ.
std::string lines_of(const CommandLine& c) {
  std::string text;
  for (const auto& [option, value] : c.given)
    text += fmt::format("{}\t{}\n", option, base::quoted(value, value.size()));
  return text;
}

}  // namespace

bool CommandLine::looks() const {
  return validate || describe_given || !list.empty() || !modes::registry().at(mode).on_ranks;
}

std::optional<Answer> parse_command_line(int argc, char** argv, CommandLine& c) {
  CLI::App app{"Trains models of images on a mesh of MPI ranks.", "trainer"};
  std::optional<Answer> answer;
  try {
    parse(argc, argv, app, c);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, err;
    const int code = app.exit(e, out, err);
    answer = code == 0 ? Answer{0, out.str()} : Answer{int(base::Exit::config), e.what()};
  }
  for (const CLI::Option* o : app.get_options())
    if (o->get_name() != "deck") c.given[o->get_name()] = base::join(o->results(), " ");
  c.given["the command line"] = answer && answer->exit ? answer->text : "";
  return answer;
}

void list_variants(const std::string& what) {
  for (const Variant& v : variants()) {
    if (v.list != what) continue;
    if (what == "op")
      print_op(v.name);
    else
      std::printf("%-24s %s\n", v.name.c_str(), v.doc.c_str());
  }
}

bool print_variants(const std::string& name) {
  bool any = false;
  for (const Variant& v : variants()) {
    if (v.name != name) continue;
    any = true;
    if (v.list == "op")
      print_op(name);
    else
      std::printf("%s (%s): %s\n", name.c_str(), v.list.c_str(), v.doc.c_str());
  }
  return any;
}

bool agree_on_command(comm::Comm& world, const CommandLine& c) {
  const std::string mine = lines_of(c);
  if (world.same(base::xxh3(mine))) return true;
  const std::vector<std::string> all = world.gather_text(mine);
  if (world.rank() != 0) return false;
  std::string differs;
  const std::vector<std::string> first = base::split(all[0], '\n');
  for (size_t i = 0; i + 1 < first.size(); ++i)
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const std::vector<std::string> other = base::split(all[rank], '\n');
      if (i < other.size() && other[i] == first[i]) continue;
      const std::string option = first[i].substr(0, first[i].find('\t'));
      auto value = [](const std::string& line) { return line.substr(line.find('\t') + 1); };
      differs += fmt::format("\n{}{}: rank 0 has {}, rank {} has {}", option,
                             option == "--mesh-selector" ? " (or $TRAINER_MESH_SELECTOR)" : "",
                             value(first[i]), rank,
                             i < other.size() ? value(other[i]) : "another program");
      break;
    }
  base::log::error("the ranks were not started alike; give all of them the same{}", differs);
  return false;
}

bool agree_on_deck(comm::Comm& world, const CommandLine& c, const std::string& digest) {
  if (world.same(base::xxh3(digest))) return true;
  if (world.rank() == 0)
    base::log::error(
        "the ranks were not started alike: they read different bytes from the deck {}; give all of "
        "them the same file",
        c.deck);
  return false;
}
