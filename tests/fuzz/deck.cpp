// SPDX-License-Identifier: Apache-2.0
// Reads a deck, followed by overrides with a zero byte before each. The schema is the part of the
// program's own schema that needs few folders: data, tokenizer, loader, schedule, checkpoint, init.
// It has all types of keys, kinds, named tables, lists and durations.
#include "base/text.hpp"
#include "checkpoint/init_options.hpp"
#include "checkpoint/options.hpp"
#include "config/table.hpp"
#include "data/options.hpp"
#include "optim/schedule.hpp"
#include "targets.hpp"

namespace fuzz {
namespace {

struct Root {
  int64_t format = 1;
  config::Duration total;
  data::Sections data;
  std::map<std::string, optim::ScheduleOptions> schedule;
  checkpoint::CheckpointOptions checkpoint;
  checkpoint::InitOptions init;
  void bind(config::Table& t) {
    t.key("format", format, "version of the deck format").min(1).max(1);
    t.duration("total", total, "length of the run").required().above(0);
    data.bind(t);
    t.named("schedule", schedule, "multipliers of the update");
    t.table("checkpoint", checkpoint, "files to continue from");
    t.table("init", init, "parameters of a new run");
  }
};

}  // namespace

void deck(std::string_view input) {
  std::vector<std::string> parts = base::split(input, '\0');
  Root root;
  config::Deck deck({"run.toml", parts[0], {parts.begin() + 1, parts.end()}}, root);
  deck.digest();
  deck.has("data.train.path");
  deck.on_resume("total");
  if (!deck.problems().any()) {
    // main reports problems that involve several tables in the same way.
    for (const data::Problem& p : root.data.problems()) deck.error(p.key, p.text);
    for (auto& [name, options] : root.schedule)
      for (const optim::Problem& p : options.problems({1000, 64, 4096}, "schedule." + name))
        deck.error(p.key, p.text);
  }
  if (deck.problems().any()) return;
  // The resolved deck must have the values of the deck.
  Root again;
  config::Deck resolved({"resolved.toml", deck.resolved(), {}}, again);
  resolved.throw_if_any();
  expect(resolved.flat() == deck.flat(), "a resolved deck differs from its deck");
  for (auto& [name, options] : root.schedule) {
    optim::Schedule schedule = options.make({1000, 64, 4096}, name);
    for (int64_t step : {0, 1, 500, 999}) schedule.at(step);
  }
}

}  // namespace fuzz
