// SPDX-License-Identifier: Apache-2.0
// Tests with which changes of a deck a run continues: free ones, allowed ones, and those that no
// flag allows.
#include "train/changes.hpp"

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "train/recipe.hpp"

namespace train {
namespace {

const std::string kDeck = R"(
run   = { dir = "unused" }
train = { data = "made", total_steps = 10, global_batch = 96 }
[model]
kind       = "cappa"
image_size = 16
vocab_size = 50
seq_len    = 8
encoder    = { patch = 8, depth = 1, width = 32, mlp = 48, heads = 2 }
[optimizer]
kind          = "adafactor"
learning_rate = 1e-3
[data.made]
kind       = "synthetic"
image_size = 16
seq_len    = 8
vocab_size = 50
)";

// Goes on from kDeck with these settings. Returns "key: was -> is", "(free)" behind free ones; or
// the message of the error.
std::string changes_of(const std::vector<std::string>& settings,
                       const std::vector<std::string>& allowed = {}) {
  Recipe recipe;
  const config::Deck deck(config::DeckSource{"deck.toml", kDeck, settings, {}}, recipe);
  EXPECT_EQ(base::join(deck.problems().lines, "\n"), "");
  try {
    std::vector<std::string> lines;
    for (const KeyChange& c : check_changes(kDeck, deck, allowed))
      lines.push_back(fmt::format("{}: {} -> {}{}", c.key, c.was, c.is, c.free ? " (free)" : ""));
    return base::join(lines, "\n");
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    return e.what();
  }
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
}

TEST(Changes, FreeOnesNeedNoFlag) {
  EXPECT_EQ(changes_of({}), "");
  EXPECT_EQ(changes_of({"train.total_steps=20", "run.threads=3"}),
            "run.threads: 0 -> 3 (free)\ntrain.total: 10 steps -> 20 steps (free)");
  EXPECT_EQ(changes_of({"train.total_steps=20"}, {"optimizer"}),
            "train.total: 10 steps -> 20 steps (free)")
      << "a flag may stay in the job script";
}

TEST(Changes, OthersAreAllowedByTheirKeyOrTable) {
  const std::vector<std::string> both = {"optimizer.learning_rate=0.5", "train.global_batch=48"};
  expect_words(changes_of(both), {"optimizer.learning_rate: the checkpoint has 0.001, the deck 0.5",
                                  "train.global_batch: the checkpoint has 96, the deck 48",
                                  "--allow-change KEY for each"});
  const std::string one = changes_of(both, {"optimizer"});
  expect_words(one, {"train.global_batch: the checkpoint has 96"});
  EXPECT_EQ(one.find("learning_rate"), std::string::npos) << one;
  EXPECT_EQ(changes_of(both, {"optimizer.learning_rate", "train"}),
            "optimizer.learning_rate: 0.001 -> 0.5\ntrain.global_batch: 96 -> 48");
  // A key is not a table of keys whose names begin with its name.
  expect_words(changes_of({"train.shuffle_block=9"}, {"train.shuffle"}),
               {"train.shuffle_block: the checkpoint has 512, the deck 9"});
  expect_words(changes_of({}, {"optimizer.learning_rat"}),
               {"--allow-change optimizer.learning_rat: no such key or table",
                "did you mean optimizer.learning_rate"});
}

TEST(Changes, WhatWouldMakeTheStateMeaninglessIsNeverAllowed) {
  const std::string text =
      changes_of({"model.encoder.width=64", "train.global_batch=48"}, {"model", "train"});
  expect_words(text, {"model.encoder.width: the checkpoint has 32, the deck 64 (can never change",
                      "Give this run another run.dir"});
  EXPECT_EQ(text.find("global_batch"), std::string::npos) << text;
  EXPECT_EQ(text.find("--allow-change"), std::string::npos) << text;
}

TEST(Changes, KeysThatOneDeckLacksAreAbsent) {
  expect_words(changes_of({"ema.decay=0.5"}), {"ema.decay: absent -> 0.5 (free)"});
}

}  // namespace
}  // namespace train
