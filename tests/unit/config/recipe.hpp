// SPDX-License-Identifier: Apache-2.0
// The options of a small program that use every feature of the engine. The tests pass decks to it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "config/table.hpp"

namespace recipe {

using config::Duration;
using config::OnResume;
using config::Table;

struct Train {
  std::string data;
  std::map<std::string, double> mixture;
  Duration total;
  Duration cooldown;
  int64_t global_batch = 0;
  int micro_batch = 256;
  std::string shuffle = "exact";
  double label_smoothing = 0;
  std::vector<int64_t> start_steps;
  void bind(Table& t) {
    t.key("data", data, "name of a [data.NAME] table").required();
    t.key("mixture", mixture, "weights of data sets").above(0);
    t.duration("total", total, "length of the run")
        .required()
        .above(0)
        .on_resume(OnResume::may_change);
    t.duration("cooldown", cooldown, "length of the last phase");
    t.key("global_batch", global_batch, "examples per update").required().min(1).unit("examples");
    t.key("micro_batch", micro_batch, "examples per pass")
        .min(1)
        .max(4096)
        .on_resume(OnResume::may_change);
    t.key("shuffle", shuffle, "order of the examples").one_of({"none", "exact", "blocks"});
    t.key("label_smoothing", label_smoothing, "share of the label given to all").min(0).max(1);
    t.key("start_steps", start_steps, "steps to trace").min(0);
    if (t.has("data") && !mixture.empty()) t.error("mixture", "give data or mixture, not both");
  }
};

struct Encoder {
  int64_t width = 768, heads = 12;
  void bind(Table& t) {
    t.key("width", width, "features").min(1);
    t.key("heads", heads, "attention heads").min(1).check([this] {
      return width % heads == 0 ? "" : "width " + std::to_string(width) + " is not divisible by it";
    });
  }
};

struct Model {
  Encoder encoder, decoder;
  void bind(Table& t) {
    t.table("encoder", encoder, "image side");
    decoder.width = encoder.width;  // derived default
    t.table("decoder", decoder, "text side");
  }
};

struct Adafactor : Table::Variant {
  double beta2_cap = 0.999, eps = 1e-30;
  std::string momentum_type = "bf16";
  void bind(Table& t) override {
    t.key("beta2_cap", beta2_cap, "largest second-moment decay").min(0).max(1);
    t.key("momentum_type", momentum_type, "momentum storage").one_of({"bf16", "f32"});
    t.key("eps", eps, "added to the square");
  }
};

struct AdamW : Table::Variant {
  double beta2 = 0.95, eps = 1e-8;
  Encoder preconditioner;
  void bind(Table& t) override {
    t.key("beta2", beta2, "second-moment decay").min(0).max(1);
    t.key("momentum_type", momentum_type, "momentum storage").one_of({"bf16", "f32"});
    t.key("eps", eps, "added to the root");
    t.table("preconditioner", preconditioner, "shape of the preconditioner");
  }
  std::string momentum_type = "bf16";
};

inline std::shared_ptr<Table::Variant> make_optimizer(const std::string& kind) {
  if (kind == "adafactor") return std::make_shared<Adafactor>();
  if (kind == "adamw") return std::make_shared<AdamW>();
  return nullptr;  // "sgd" has no keys of its own
}

struct Rule {
  std::string match;
  double decay_scale = 1;
  bool frozen = false;
  void bind(Table& t) {
    t.key("match", match, "regular expression").required();
    t.key("decay_scale", decay_scale, "multiplies the weight decay");
    t.key("frozen", frozen, "never updated");
  }
};

struct Optimizer {
  std::string kind;
  std::shared_ptr<Table::Variant> options;
  double learning_rate = 1e-3;
  std::vector<Rule> rules;
  void bind(Table& t) {
    t.kind("kind", kind, options, {"adafactor", "adamw", "sgd"}, make_optimizer, "which optimizer");
    t.key("learning_rate", learning_rate, "base learning rate").above(0);
    t.list("rule", rules, "first full match wins");
  }
};

struct Data {
  std::string path, preprocess;
  std::map<std::string, std::string> fields;
  bool cache = false;
  void bind(Table& t) {
    t.key("path", path, "where the files are").required();
    t.key("preprocess", preprocess, "chain of operations");
    t.key("fields", fields, "our field = theirs");
    t.key("cache", cache, "keep decoded examples");
  }
};

// A composite schedule contains itself through a kind.
struct Schedule {
  std::string kind = "cosine";
  std::shared_ptr<Table::Variant> options;
  double scale = 1;
  void bind(Table& t);
};
struct Composite : Table::Variant {
  std::vector<Schedule> parts;
  void bind(Table& t) override { t.list("part", parts, "one after the other"); }
};
struct Cosine : Table::Variant {
  Duration warmup;
  void bind(Table& t) override { t.duration("warmup", warmup, "rise from 0"); }
};
inline void Schedule::bind(Table& t) {
  auto make = [](const std::string& k) -> std::shared_ptr<Table::Variant> {
    if (k == "composite") return std::make_shared<Composite>();
    return std::make_shared<Cosine>();
  };
  t.kind("kind", kind, options, {"cosine", "composite"}, make, "shape");
  t.key("scale", scale, "multiplies the shape");
}

struct Log {
  Duration console_every{Duration::Unit::steps, 50};
  Duration keep_every;
  std::vector<std::string> groups = {"encoder/.*"};
  std::vector<double> levels;
  int flush_s = 30;
  void bind(Table& t) {
    t.duration("console_every", console_every, "lines on the console")
        .on_resume(OnResume::may_change);
    t.duration("keep_every", keep_every, "kept files");
    t.key("groups", groups, "parameter groups").on_resume(OnResume::may_change);
    t.key("levels", levels, "quantiles").min(0).max(1);
    t.key("flush_s", flush_s, "between writes to disk").min(1).unit("s");
  }
};

struct Root {
  int format = 0;
  std::map<std::string, std::string> env;
  Train train;
  Model model;
  Optimizer optimizer;
  std::map<std::string, Schedule> schedule = {{"default", {}}};
  std::map<std::string, Data> data;
  Log log;
  void bind(Table& t) {
    t.key("format", format, "version of the deck's layout")
        .required()
        .min(1)
        .max(1)
        .on_resume(OnResume::never);
    t.key("env", env, "environment variables");
    t.table("train", train, "what is trained, and how long");
    t.table("model", model, "");
    t.table("optimizer", optimizer, "how it is trained");
    t.named("schedule", schedule, "multipliers of the update");
    t.named("data", data, "data sets");
    t.table("log", log, "what is written");
  }
};

// A valid deck; the tests depend on its line numbers.
inline const char* const good = R"(format = 1
[train]
data = "coco"
total_steps = 1_000
global_batch = 64
[optimizer]
kind = "adafactor"
[[optimizer.rule]]
match = ".*/kernel"
[[optimizer.rule]]
match = ".*"
decay_scale = 0
[data.coco]
path = "/data/coco.tar"
fields = { image = "jpg", "a/b" = "x" }
)";

struct Result {
  Root root;
  std::unique_ptr<config::Deck> deck;
  std::vector<std::string> problems() const { return deck->problems().lines; }
};

inline std::unique_ptr<Result> parse(std::string text, std::vector<std::string> overrides = {},
                                     std::vector<std::string> removals = {}) {
  auto r = std::make_unique<Result>();
  r->deck = std::make_unique<config::Deck>(
      config::DeckSource{"run.toml", std::move(text), std::move(overrides), std::move(removals)},
      r->root);
  return r;
}

inline std::vector<std::string> problems(std::string text, std::vector<std::string> overrides = {},
                                         std::vector<std::string> removals = {}) {
  return parse(std::move(text), std::move(overrides), std::move(removals))->problems();
}

// Returns `good` with one line replaced.
inline std::string with_line(int line, const std::string& text) {
  std::string out;
  int n = 1;
  for (size_t begin = 0, end; begin < std::string_view(good).size(); begin = end + 1, ++n) {
    end = std::string_view(good).find('\n', begin);
    out += (n == line ? text : std::string(good + begin, end - begin)) + "\n";
  }
  return out;
}

// Returns the problems of `good` with more text at its end, which begins in line next_line.
constexpr int next_line = 16;
inline std::vector<std::string> with(const std::string& more) {
  return problems(std::string(good) + more);
}

inline std::string at(int line, const std::string& text) {
  return "run.toml:" + std::to_string(line) + ": " + text;
}

}  // namespace recipe
