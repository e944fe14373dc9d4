// SPDX-License-Identifier: Apache-2.0
// Tests values that a deck may hold, and the exact messages for wrong types, ranges, missing keys
// and durations.
#include <algorithm>

#include "recipe.hpp"

namespace {

using recipe::at;
using recipe::good;
using recipe::next_line;
using recipe::parse;
using recipe::problems;
using recipe::with;
using recipe::with_line;
using Lines = std::vector<std::string>;

TEST(Value, FillsMembersAndKeepsDefaults) {
  auto r = parse(
      std::string(good) +
      "[log]\nconsole_every_epochs = 2\nlevels = [0, 0.5]\nflush_s = 5\n[train.mixture]\na = 1\n");
  EXPECT_EQ(r->problems(), Lines{"run.toml:20: train.mixture: give data or mixture, not both"});
  EXPECT_EQ(r->root.format, 1);
  EXPECT_EQ(r->root.train.data, "coco");
  EXPECT_EQ(r->root.train.total.unit, recipe::Duration::Unit::steps);
  EXPECT_EQ(r->root.train.total.value, 1000);
  EXPECT_FALSE(r->root.train.cooldown.set());
  EXPECT_EQ(r->root.train.global_batch, 64);
  EXPECT_EQ(r->root.train.micro_batch, 256);
  EXPECT_EQ(r->root.train.shuffle, "exact");
  ASSERT_EQ(r->root.optimizer.rules.size(), 2u);
  EXPECT_EQ(r->root.optimizer.rules[0].match, ".*/kernel");
  EXPECT_EQ(r->root.optimizer.rules[0].decay_scale, 1);
  EXPECT_EQ(r->root.optimizer.rules[1].decay_scale, 0);  // an integer for a double
  ASSERT_EQ(r->root.data.count("coco"), 1u);
  EXPECT_EQ(r->root.data["coco"].fields,
            (std::map<std::string, std::string>{{"image", "jpg"}, {"a/b", "x"}}));
  // The default was in steps.
  EXPECT_EQ(r->root.log.console_every.unit, recipe::Duration::Unit::epochs);
  EXPECT_EQ(r->root.log.console_every.value, 2);
  EXPECT_EQ(r->root.log.levels, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(r->root.log.flush_s, 5);
  EXPECT_EQ(r->root.log.groups, std::vector<std::string>{"encoder/.*"});
}

TEST(Value, TablesMayBeHeadersInlineOrDotted) {
  auto r = parse(R"(format = 1
train = { data = "c", total_steps = 5, global_batch = 8, start_steps = [1, 2] }
optimizer.kind = "sgd"
optimizer.rule = [ { match = "a" }, { match = "b", frozen = true } ]
model.encoder.width = 24
model.decoder = { width = 36 }
[data]
c = { path = "p" }
[env]
NCCL_DEBUG = "WARN"
)");
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.train.global_batch, 8);
  EXPECT_EQ(r->root.train.start_steps, (std::vector<int64_t>{1, 2}));
  ASSERT_EQ(r->root.optimizer.rules.size(), 2u);
  EXPECT_TRUE(r->root.optimizer.rules[1].frozen);
  EXPECT_EQ(r->root.model.encoder.width, 24);
  EXPECT_EQ(r->root.model.decoder.width, 36);
  EXPECT_EQ(r->root.data["c"].path, "p");
  EXPECT_EQ(r->root.env.at("NCCL_DEBUG"), "WARN");
}

TEST(Value, GoodDeckHasNoProblems) {
  auto r = parse(good);
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_FALSE(r->deck->problems().any());
  EXPECT_NO_THROW(r->deck->throw_if_any());
}

TEST(Value, DerivedDefaults) {
  auto r = parse(std::string(good) + "[model.encoder]\nwidth = 36\n");
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.model.decoder.width, 36);
  EXPECT_EQ(r->deck->flat().at("model.decoder.width"), "36");
}

TEST(Value, EveryProblemIsReportedInTheOrderOfTheLines) {
  EXPECT_EQ(
      problems(R"(format = 1
[log]
flush_s = 0
grups = []
[train]
data = "c"
total_steps = "many"
global_batch = 8
shuffle = "exakt"
[modle]
x = 1
[optimizer]
kind = "sgd"
learning_rate = 0
)"),
      (Lines{
          R"(run.toml:3: log.flush_s: 0 is out of range: must be >= 1 s)",
          R"(run.toml:4: log.grups: unknown key; did you mean groups?)",
          R"(run.toml:7: train.total_steps: expected an integer, found the string "many")",
          R"(run.toml:9: train.shuffle: "exakt" is not accepted; did you mean "exact"? Accepted: "none", "exact", )"
          R"("blocks")",
          R"(run.toml:10: modle: unknown table; did you mean model?)",
          R"(run.toml:14: optimizer.learning_rate: 0 is out of range: must be > 0)",
      }));
}

TEST(Value, LengthsThatCannotBeAFraction) {
  struct Root {
    config::Duration length;
    void bind(config::Table& t) {
      t.duration("length", length, "how long").required().no_fraction();
    }
  };
  auto lines = [](const char* deck) {
    Root root;
    return config::Deck({"run.toml", deck, {}}, root).problems().lines;
  };
  EXPECT_EQ(lines("length_epochs = 2.0"), Lines{});
  EXPECT_EQ(
      lines(""),
      Lines{
          at(1,
             "length: missing; add exactly one of length_steps, length_examples, length_epochs to "
             "the top of the deck: how long")});
  EXPECT_EQ(lines("\nlength_fraction = 0.5"),
            Lines{at(2,
                     "length_fraction: cannot be a fraction of the run; write one of length_steps, "
                     "length_examples, "
                     "length_epochs")});
}

TEST(Value, MissingRequiredKeys) {
  EXPECT_EQ(problems(""), (Lines{
                              at(1,
                                 "format: missing; add format = ... (an integer, 1) to the top of "
                                 "the deck: version of the deck's layout"),
                              at(1,
                                 "train.data: missing; add data = ... (a string) to [train]: name "
                                 "of a [data.NAME] table"),
                              at(1,
                                 "train.total: missing; add exactly one of total_steps, "
                                 "total_examples, total_epochs, total_fraction to "
                                 "[train]: length of the run"),
                              at(1,
                                 "train.global_batch: missing; add global_batch = ... (an integer, "
                                 ">= 1 examples) to [train]: examples per "
                                 "update"),
                              at(1,
                                 "optimizer.kind: missing; add kind = ... (a string, one of "
                                 "adafactor, adamw, sgd) to [optimizer]: which "
                                 "optimizer"),
                          }));
  EXPECT_EQ(with_line(9, "").find("match = \".*/kernel\""), std::string::npos);
  EXPECT_EQ(problems(with_line(9, "")),
            Lines{at(8,
                     "optimizer.rule[0].match: missing; add match = ... (a string) to "
                     "optimizer.rule[0]: regular expression")});
  EXPECT_EQ(problems(with_line(14, "")), Lines{at(13,
                                                  "data.coco.path: missing; add path = ... (a "
                                                  "string) to [data.coco]: where the files are")});
}

// A line that is added to a good deck, below the header of a table, and its problem.
struct WrongLine {
  const char *table, *line, *problem;
};

void expect_problem(const WrongLine& c) {
  SCOPED_TRACE(c.line);
  // A missing table is added, and a key without a table goes to the top.
  std::string text = good, header = std::string("[") + c.table + "]\n";
  size_t place = 0;
  if (*c.table) {
    if (text.find(header) == text.npos) text += header;
    place = text.find(header) + header.size();
  }
  int line = 1 + int(std::count(text.begin(), text.begin() + std::ptrdiff_t(place), '\n'));
  text.insert(place, std::string(c.line) + "\n");
  EXPECT_EQ(problems(text), Lines{at(line, c.problem)});
}

TEST(Value, WrongTypesSayWhatWasExpectedAndFound) {
  for (
      const WrongLine& c : {
          WrongLine{
              "log", "flush_s = \"8\"",
              R"(log.flush_s: expected an integer, found the string "8"; write 8 without quotes)"},
          WrongLine{
              "log", "flush_s = \"-007\"",
              R"(log.flush_s: expected an integer, found the string "-007"; write -7 without quotes)"},
          WrongLine{"log", "flush_s = \"8x\"",
                    R"(log.flush_s: expected an integer, found the string "8x")"},
          WrongLine{"log", "flush_s = 8.0",
                    "log.flush_s: expected an integer, found the number 8.0; write 8"},
          WrongLine{"log", "flush_s = 1e3",
                    "log.flush_s: expected an integer, found the number 1000.0; write 1000"},
          WrongLine{"log", "flush_s = 8.5",
                    "log.flush_s: expected an integer, found the number 8.5"},
          WrongLine{"log", "flush_s = true",
                    "log.flush_s: expected an integer, found the boolean true"},
          WrongLine{"log", "flush_s = [8]", "log.flush_s: expected an integer, found a list"},
          WrongLine{"log", "flush_s = {}", "log.flush_s: expected an integer, found a table"},
          WrongLine{"log", "flush_s = 2024-01-01",
                    "log.flush_s: expected an integer, found a date or time"},
          WrongLine{
              "optimizer", "learning_rate = \".5\"",
              R"(optimizer.learning_rate: expected a number, found the string ".5"; write 0.5 without quotes)"},
          WrongLine{"optimizer", "learning_rate = false",
                    "optimizer.learning_rate: expected a number, found the boolean false"},
          WrongLine{
              "data.coco", "cache = \"true\"",
              R"(data.coco.cache: expected true or false, found the string "true"; write true without quotes)"},
          WrongLine{"data.coco", "cache = 1",
                    "data.coco.cache: expected true or false, found the integer 1"},
          WrongLine{"train", "shuffle = 1000",
                    R"(train.shuffle: expected a string, found the integer 1000; write "1000")"},
          WrongLine{"train", "shuffle = false",
                    R"(train.shuffle: expected a string, found the boolean false; write "false")"},
          WrongLine{"train", "shuffle = 1.5",
                    R"(train.shuffle: expected a string, found the number 1.5; write "1.5")"},
          WrongLine{"train", "shuffle = 10:30:00",
                    "train.shuffle: expected a string, found a date or time; put it in quotes"},
          WrongLine{"log", "groups = \"a\"",
                    R"(log.groups: expected a list of strings, found the string "a"; write ["a"])"},
          WrongLine{"log", "groups = [\"a\", 1]",
                    R"(log.groups[1]: expected a string, found the integer 1; write "1")"},
          WrongLine{"log", "levels = 0.5",
                    "log.levels: expected a list of numbers, found the number 0.5; write [0.5]"},
          WrongLine{"log", "levels = [0, \"x\"]",
                    R"(log.levels[1]: expected a number, found the string "x")"},
          WrongLine{
              "train", "start_steps = 5",
              "train.start_steps: expected a list of integers, found the integer 5; write [5]"},
          WrongLine{"train", "start_steps = [1, 2.0]",
                    "train.start_steps[1]: expected an integer, found the number 2.0; write 2"},
      })
    expect_problem(c);
}

TEST(Value, WrongTablesSayWhatWasExpectedAndFound) {
  for (
      const WrongLine& c : {
          WrongLine{
              "", "env = \"A=1\"",
              R"(env: expected a table of strings, found the string "A=1"; write { name = "text" })"},
          WrongLine{"", "env = { A = 1 }",
                    R"(env.A: expected a string, found the integer 1; write "1")"},
          WrongLine{"", "env = { \"a b\" = 1 }",
                    R"(env."a b": expected a string, found the integer 1; write "1")"},
          WrongLine{
              "train", "mixture = [1]",
              "train.mixture: expected a table of numbers, found a list; write { name = 1.0 }"},
          WrongLine{"", "log = 5", "log: expected a table, found the integer 5"},
          WrongLine{"", "log = []", "log: expected one table, found a list; write [log]"},
          WrongLine{"", "log = [{}]",
                    "log: expected one table, found a list of tables; write [log]"},
          WrongLine{
              "", "schedule.default = 1",
              "schedule.default: expected a table, found the integer 1; [schedule] holds named "
              "tables only: "
              "[schedule.NAME]"},
          WrongLine{"", "schedule = []",
                    "schedule: expected one table, found a list; write [schedule]"},
          WrongLine{"", "schedule.\"a b\".scale = 1",
                    R"(schedule."a b": a name here has at most 100 letters, digits, _ and -)"},
      })
    expect_problem(c);
}

TEST(Value, ListsOfTables) {
  std::string base =
      "format = 1\ntrain = { data = 'c', total_steps = 5, global_batch = 8 }\noptimizer.kind = "
      "'sgd'\n";
  EXPECT_EQ(
      problems(base + "[optimizer.rule]\nmatch = 'a'\n"),
      Lines{at(
          4,
          "optimizer.rule: expected a list of tables, found a table; write [[optimizer.rule]]")});
  EXPECT_EQ(
      problems(base + "optimizer.rule = 'a'\n"),
      Lines{at(
          4,
          R"(optimizer.rule: expected a list of tables, found the string "a"; write [[optimizer.rule]])")});
  EXPECT_EQ(problems(base + "optimizer.rule = [{ match = 'a' }, 5]\n"),
            Lines{at(4, "optimizer.rule[1]: expected a table, found the integer 5")});
  auto r = parse(base + "optimizer.rule = []\n");
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_TRUE(r->root.optimizer.rules.empty());
}

TEST(Value, AListInTheDeckReplacesTheDefaultElements) {
  struct Root {
    std::vector<recipe::Rule> rules{{"x", 7, true}, {"y", 8, true}};
    void bind(config::Table& t) { t.list("rule", rules, "rules"); }
  };
  Root kept, replaced;
  config::Deck none({"run.toml", "", {}}, kept);
  EXPECT_EQ(kept.rules.size(), 2u);
  // `match` is required, but the program gives it to these elements.
  EXPECT_EQ(none.problems().lines, Lines{});
  config::Deck one({"run.toml", "[[rule]]\nmatch = 'z'\n", {}}, replaced);
  ASSERT_EQ(replaced.rules.size(), 1u);
  EXPECT_EQ(replaced.rules[0].match, "z");
  EXPECT_EQ(replaced.rules[0].decay_scale, 1);  // not the 7 of the default element
  Root emptied, again;
  config::Deck empty({"run.toml", "rule = []\n", {}}, emptied);
  EXPECT_TRUE(emptied.rules.empty());
  // without this line the default elements would return
  EXPECT_EQ(empty.resolved(), "rule = []  # rules\n");
}

TEST(Value, DefaultElementsNeedNothingFromTheDeck) {
  struct Element {
    recipe::Rule inner;
    void bind(config::Table& t) { t.table("inner", inner, "with a required key"); }
  };
  struct Root {
    std::vector<Element> list{1};
    std::map<std::string, Element> named{{"a", {}}, {"b", {}}};
    void bind(config::Table& t) {
      t.list("list", list, "");
      t.named("named", named, "");
    }
  } root;
  config::Deck deck({"run.toml", "[named.a.inner]\n", {}}, root);
  EXPECT_EQ(deck.problems().lines,
            Lines{at(1,
                     "named.a.inner.match: missing; add match = ... (a string) to "
                     "[named.a.inner]: regular expression")});
}

TEST(Value, Ranges) {
  EXPECT_EQ(problems(with_line(5, "global_batch = 0")),
            Lines{at(5, "train.global_batch: 0 is out of range: must be >= 1 examples")});
  EXPECT_EQ(problems(with_line(5, "global_batch = 8\nmicro_batch = 5000")),
            Lines{at(6, "train.micro_batch: 5000 is out of range: must be 1..4096")});
  EXPECT_EQ(problems(with_line(5, "global_batch = 8\nlabel_smoothing = -0.5")),
            Lines{at(6, "train.label_smoothing: -0.5 is out of range: must be 0..1")});
  EXPECT_EQ(problems(with_line(1, "format = 2")),
            Lines{at(1, "format: 2 is out of range: must be 1")});
  EXPECT_EQ(with("[log]\nlevels = [0.5, 2, 3.5]\n"),
            (Lines{at(next_line + 1, "log.levels[1]: 2 is out of range: must be 0..1"),
                   at(next_line + 1, "log.levels[2]: 3.5 is out of range: must be 0..1")}));
  EXPECT_EQ(problems(with_line(3, "mixture = { a = 1, b = 0 }")),
            (Lines{at(2,
                      "train.data: missing; add data = ... (a string) to [train]: name of a "
                      "[data.NAME] table"),
                   at(3, "train.mixture.b: 0 is out of range: must be > 0")}));
  // A value with a problem leaves the member alone.
  EXPECT_EQ(parse(with_line(5, "global_batch = 8\nmicro_batch = 5000"))->root.train.micro_batch,
            256);
}

TEST(Value, BoundsAreInclusive) {
  EXPECT_EQ(problems(with_line(5, "global_batch = 1\nmicro_batch = 4096\nlabel_smoothing = 1")),
            Lines{});
  EXPECT_EQ(problems(with_line(5, "global_batch = 1\nmicro_batch = 1\nlabel_smoothing = 0")),
            Lines{});
  EXPECT_EQ(problems(with_line(7, "kind = 'adafactor'\nlearning_rate = 1e-300")), Lines{});  // > 0
}

TEST(Value, NumbersThatDoNotFit) {
  EXPECT_EQ(with("[log]\nflush_s = 2147483648\n"),
            Lines{at(next_line + 1,
                     "log.flush_s: 2147483648 does not fit: must be -2147483648..2147483647")});
  EXPECT_EQ(with("[log]\nflush_s = 2147483647\n"), Lines{});
  EXPECT_EQ(with("[log]\nflush_s = 9223372036854775808\n"),
            Lines{at(next_line + 1,
                     "syntax: decimal integer: '9223372036854775808' is not representable in 64 "
                     "bits; the largest is "
                     "9223372036854775807")});
  EXPECT_EQ(with("[log]\nlevels = [nan, inf]\n"),
            (Lines{at(next_line + 1, "log.levels[0]: nan is not a finite number"),
                   at(next_line + 1, "log.levels[1]: inf is not a finite number")}));
  EXPECT_EQ(problems(with_line(7, "kind = 'sgd'\nlearning_rate = -inf")),
            Lines{at(8, "optimizer.learning_rate: -inf is not a finite number")});
}

TEST(Value, Durations) {
  auto log = [](const std::string& lines) { return with("[log]\n" + lines + "\n"); };
  int line = next_line + 1;
  EXPECT_EQ(log("keep_every_steps = 0"), Lines{});
  EXPECT_EQ(log("keep_every_examples = 100"), Lines{});
  EXPECT_EQ(log("keep_every_epochs = 1"), Lines{});
  EXPECT_EQ(log("keep_every_epochs = 0.5"), Lines{});
  EXPECT_EQ(log("keep_every_fraction = 0"), Lines{});
  EXPECT_EQ(log("keep_every_fraction = 1"), Lines{});
  EXPECT_EQ(
      log("keep_every_steps = 5.0"),
      Lines{at(line, "log.keep_every_steps: expected an integer, found the number 5.0; write 5")});
  EXPECT_EQ(log("keep_every_examples = 5.5"),
            Lines{at(line, "log.keep_every_examples: expected an integer, found the number 5.5")});
  EXPECT_EQ(log("keep_every_steps = -1"),
            Lines{at(line, "log.keep_every_steps: -1 is out of range: must be >= 0")});
  EXPECT_EQ(log("keep_every_steps = 9007199254740994"),
            Lines{at(line, "log.keep_every_steps: 9007199254740994 is too large")});
  EXPECT_EQ(log("keep_every_epochs = inf"),
            Lines{at(line, "log.keep_every_epochs: inf is not a finite number")});
  EXPECT_EQ(log("keep_every_epochs = -0.5"),
            Lines{at(line, "log.keep_every_epochs: -0.5 is out of range: must be >= 0")});
  EXPECT_EQ(log("keep_every_fraction = 10"),
            Lines{at(line,
                     "log.keep_every_fraction: 10 is out of range: must be 0..1, a fraction of the "
                     "run (10 percent is 0.1)")});
  EXPECT_EQ(log("keep_every_percent = 10"),
            Lines{at(line,
                     "log.keep_every_percent: write keep_every_fraction, a fraction of the run in "
                     "0..1 (10 percent is 0.1)")});
  EXPECT_EQ(
      log("keep_every = 10"),
      Lines{at(line,
               "log.keep_every: unknown key; write one of keep_every_steps, keep_every_examples, "
               "keep_every_epochs, keep_every_fraction")});
  EXPECT_EQ(log("keep_every_fraction = 0.5\nkeep_every_steps = 4"),
            Lines{at(line + 1,
                     "log.keep_every_steps: conflicts with keep_every_fraction (line 17); give "
                     "only one of keep_every_steps, "
                     "keep_every_examples, keep_every_epochs, keep_every_fraction")});
  // Bounds of the row hold for every spelling. A required key whose spelling is refused is not
  // reported as missing.
  EXPECT_EQ(problems(with_line(4, "total_epochs = 0")),
            Lines{at(4, "train.total_epochs: 0 is out of range: must be > 0")});
  EXPECT_EQ(problems(with_line(4, "total_percent = 5")),
            Lines{at(4,
                     "train.total_percent: write total_fraction, a fraction of the run in 0..1 (10 "
                     "percent is 0.1)")});
}

}  // namespace
