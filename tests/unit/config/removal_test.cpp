// SPDX-License-Identifier: Apache-2.0
// Tests --unset KEY.
#include "recipe.hpp"

namespace {

using recipe::good;
using recipe::parse;
using recipe::problems;
using recipe::with_line;
using Lines = std::vector<std::string>;

TEST(Removal, TakesKeysAndTablesOutOfTheDeck) {
  const std::string text =
      with_line(7, "kind = 'adafactor'\nbeta2_cap = 0.5\neps = 1") + "[log]\nflush_s = 9\n";
  auto r = parse(
      text, {}, {"optimizer.beta2_cap", " optimizer.eps ", "log", "optimizer.rule[1].decay_scale"});
  EXPECT_EQ(r->problems(), Lines{});
  auto* adafactor = dynamic_cast<recipe::Adafactor*>(r->root.optimizer.options.get());
  ASSERT_NE(adafactor, nullptr);
  EXPECT_EQ(adafactor->beta2_cap, 0.999);
  EXPECT_EQ(adafactor->eps, 1e-30);
  EXPECT_EQ(r->root.log.flush_s, recipe::Root().log.flush_s);
  EXPECT_EQ(r->root.optimizer.rules[1].decay_scale,
            recipe::Root().optimizer.rules.empty() ? 1.0 : 0.0);
  EXPECT_FALSE(r->deck->has("log"));
  EXPECT_EQ(r->deck->resolved().find("0.5"), std::string::npos);
}

TEST(Removal, OverridesApplyAfterIt) {
  auto r = parse(good, {"optimizer.kind=adamw"}, {"optimizer"});
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.optimizer.kind, "adamw");
  EXPECT_TRUE(r->root.optimizer.rules.empty());
}

TEST(Removal, WhatTheDeckLacksIsRefused) {
  const std::string absent = "the deck does not set this key";
  for (const auto& [key, problem] : std::map<std::string, std::string>{
           {"train.globl_batch", absent + "; did you mean train.global_batch?"},
           {"train.total", absent + "; did you mean train.total_steps?"},
           {"trian", absent + "; did you mean train?"},
           {"zzzz.a", absent},
           {"optimizer.rule[7].match", absent + "; did you mean optimizer.rule[0].match?"},
           {"train.data.x", absent},
           {"a b", "this is not a key of the form a.b.c"},
           {"optimizer.rule.0",
            "an element of a list cannot be removed; write the list anew with --set"}})
    EXPECT_EQ(problems(good, {}, {key}), Lines{"--unset " + key + ": " + problem});
}

TEST(Removal, ARequiredKeyIsMissingThen) {
  const Lines lines = problems(good, {}, {"train.global_batch"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("run.toml:2: train.global_batch: missing;")) << lines[0];
}

TEST(Removal, IsPartOfTheDigest) {
  EXPECT_NE(parse(good)->deck->digest(), parse(good, {}, {"optimizer.kind"})->deck->digest());
  EXPECT_NE(parse(good, {"optimizer.kind"})->deck->digest(),
            parse(good, {}, {"optimizer.kind"})->deck->digest());
}

// ---- keys that were written for another kind

constexpr const char* adafactor_table =
    "kind = 'adafactor'\nbeta2_cap = 0.5\neps = 1e-30\nmomentum_type = 'f32'";

TEST(Leftovers, OfTheKindThatAnOverrideReplaces) {
  // Only adafactor has beta2_cap, eps has another meaning in each kind, and momentum_type one
  // meaning in both.
  EXPECT_EQ(
      problems(with_line(7, adafactor_table), {"optimizer.kind=adamw"}),
      (Lines{
          R"(run.toml:8: optimizer.beta2_cap: key beta2_cap belongs to kind = "adafactor", this table has kind = "adamw")",
          R"(run.toml:9: optimizer.eps: written for kind = "adafactor" (added to the square; default 1e-30), but )"
          R"(kind = "adamw" would read it with another meaning (added to the root; default 1e-08))",
          R"(--set optimizer.kind=adamw: the deck wrote this table for kind = "adafactor". Remove the keys that were )"
          R"(meant for it (--unset optimizer.beta2_cap --unset optimizer.eps), give them new values by --set, or )"
          R"(write the whole table anew: --set 'optimizer={kind="adamw", ...}')"}));
}

TEST(Leftovers, AreGoneWithEachOfTheWaysOut) {
  const std::string text = with_line(7, adafactor_table);
  auto dropped = parse(text, {"optimizer.kind=adamw"}, {"optimizer.beta2_cap", "optimizer.eps"});
  EXPECT_EQ(dropped->problems(), Lines{});
  EXPECT_EQ(dynamic_cast<recipe::AdamW*>(dropped->root.optimizer.options.get())->eps, 1e-8);
  EXPECT_EQ(dynamic_cast<recipe::AdamW*>(dropped->root.optimizer.options.get())->momentum_type,
            "f32");
  auto given = parse(text, {"optimizer.eps=1e-6", "optimizer.kind=adamw"}, {"optimizer.beta2_cap"});
  EXPECT_EQ(given->problems(), Lines{});
  EXPECT_EQ(dynamic_cast<recipe::AdamW*>(given->root.optimizer.options.get())->eps, 1e-6);
  EXPECT_EQ(problems(text, {"optimizer={kind=\"adamw\"}"}), Lines{});
  EXPECT_EQ(problems(text, {"optimizer.kind=adafactor"}), Lines{});  // no other kind
  EXPECT_EQ(problems(text, {"optimizer.kind=sgd", "optimizer.kind=adafactor"}), Lines{});
}

TEST(Leftovers, CountFromTheKindOfTheDeckWhateverLiesBetween) {
  const Lines lines = problems(with_line(7, "kind = 'adafactor'\neps = 1e-20"),
                               {"optimizer.kind=sgd", "optimizer.kind=adamw"});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("run.toml:8: optimizer.eps: written for kind = \"adafactor\""))
      << lines[0];
  // The deck leaves this kind at its default.
  EXPECT_EQ(problems(std::string(good) + "[schedule.default]\nwarmup_steps = 5\n",
                     {"schedule.default.kind=composite"})
                .size(),
            2u);
}

TEST(Leftovers, GiveThemselvesAwayInADeckChangedByHand) {
  EXPECT_EQ(
      problems(with_line(7, "kind = 'adamw'\nbeta2_cap = 0.5\neps = 1e-30\nmomentum_type = 'f32'")),
      (Lines{
          R"(run.toml:8: optimizer.beta2_cap: key beta2_cap belongs to kind = "adafactor", this table has kind = "adamw")",
          R"(run.toml:9: optimizer.eps: is this meant for kind = "adamw" (added to the root; default 1e-08)? The table )"
          R"(holds keys of kind = "adafactor", where it means: added to the square; default 1e-30)"}));
  // The chosen kind's own default is accepted. A key without keys of another kind is accepted, too.
  EXPECT_EQ(problems(with_line(7, "kind = 'adamw'\nbeta2_cap = 0.5\neps = 1e-8")).size(), 1u);
  EXPECT_EQ(problems(with_line(7, "kind = 'adamw'\neps = 1e-30")), Lines{});
}

}  // namespace
