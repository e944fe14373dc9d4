// SPDX-License-Identifier: Apache-2.0
// Tests checks that owners add: of a key, of a table, across the deck.
#include "recipe.hpp"

namespace {

using recipe::at;
using recipe::good;
using recipe::next_line;
using recipe::parse;
using recipe::with;
using Lines = std::vector<std::string>;

TEST(Check, ChecksRunWhenTheTableIsComplete) {
  EXPECT_EQ(with("[model.encoder]\nheads = 5\nwidth = 36\n"),
            Lines{at(next_line + 1, "model.encoder.heads: width 36 is not divisible by it")});
  // If the key is not set, the problem is at the table's line. The derived default is checked, too.
  EXPECT_EQ(with("[model.encoder]\nwidth = 35\nheads = 5\n[model.decoder]\n"),
            Lines{at(next_line + 3, "model.decoder.heads: width 35 is not divisible by it")});
  // A key with another problem is not checked.
  EXPECT_EQ(with("[model.encoder]\nheads = 0\n"),
            Lines{at(next_line + 1, "model.encoder.heads: 0 is out of range: must be >= 1")});
}

TEST(Check, ADerivedDefaultThatDoesNotFitIsTheDecksProblem) {
  struct Root {
    int64_t all = 10, part = 0;
    void bind(config::Table& t) {
      t.key("all", all, "all");
      part = all / 2;
      t.key("part", part, "part of all").max(100);
    }
  } root;
  config::Deck deck({"run.toml", "all = 400\n", {}}, root);
  EXPECT_EQ(
      deck.problems().lines,
      Lines{at(1, "part: the default does not fit here: 200 is out of range: must be <= 100")});
}

TEST(Check, TableErrorMarksAKeyAsKnown) {
  struct Root {
    void bind(config::Table& t) {
      if (t.has("prune")) t.error("prune", "always on; remove the key");
    }
  } root;
  config::Deck deck({"run.toml", "\nprune = true\n", {}}, root);
  EXPECT_EQ(deck.problems().lines, Lines{at(2, "prune: always on; remove the key")});
}

TEST(Check, HasKnowsSpellings) {
  struct Root {
    recipe::Duration total;
    std::vector<bool> seen;
    void bind(config::Table& t) {
      t.duration("total", total, "length");
      seen = {t.has("total"), t.has("total_epochs"), t.has("total_steps"), t.has("other")};
    }
  } root;
  config::Deck deck({"run.toml", "total_epochs = 2\n", {}}, root);
  EXPECT_EQ(root.seen, (std::vector<bool>{true, true, false, false}));
}

TEST(Check, CrossChecksOfTheDeck) {
  auto r = parse(good, {"train.global_batch=7"});
  EXPECT_TRUE(r->deck->has("train.total"));
  EXPECT_TRUE(r->deck->has("train.total_steps"));
  EXPECT_FALSE(r->deck->has("train.total_epochs"));
  EXPECT_FALSE(r->deck->has("train.micro_batch"));
  EXPECT_TRUE(r->deck->has("train"));
  EXPECT_FALSE(r->deck->has("log"));
  EXPECT_TRUE(r->deck->has("optimizer.rule[1].decay_scale"));
  EXPECT_TRUE(r->deck->has("optimizer.rule.1.decay_scale"));
  EXPECT_FALSE(r->deck->has("optimizer.rule[0].decay_scale"));
  EXPECT_FALSE(r->deck->has("nothing.at.all"));
  r->deck->error("train.micro_batch", "does not divide");  // not set: at its table
  r->deck->error("train.total", "too short");              // at the line of its spelling
  r->deck->error("optimizer.rule[1].match", "matches nothing");
  r->deck->error("log.groups", "no such group");  // neither key nor table
  r->deck->error("train.global_batch", "not divisible by 2 ranks");
  EXPECT_EQ(r->problems(), (Lines{
                               at(1, "log.groups: no such group"),
                               at(2, "train.micro_batch: does not divide"),
                               at(4, "train.total_steps: too short"),
                               at(11, "optimizer.rule[1].match: matches nothing"),
                               "--set train.global_batch=7: not divisible by 2 ranks",
                           }));
  try {
    r->deck->throw_if_any();
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    EXPECT_EQ(std::string(e.what()).substr(0, 39), "run.toml:1: log.groups: no such group\nr");
  }
}

}  // namespace
