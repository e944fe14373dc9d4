// SPDX-License-Identifier: Apache-2.0
// Tests keys that moved to another table: an error names the new place, and the value is still read
// there.
#include <gtest/gtest.h>

#include "config/table.hpp"

namespace {

struct MovedTrain {
  void bind(config::Table& t) { t.moved("pad_id", "model.pad_id"); }
};
struct MovedModel {
  int64_t pad_id = 0;
  void bind(config::Table& t) {
    t.key("pad_id", pad_id, "id of padding; labels with this id have no loss").min(0);
  }
};
struct MovedRoot {
  MovedTrain train;
  MovedModel model;
  void bind(config::Table& t) {
    t.table("train", train, "");
    t.table("model", model, "");
  }
};

TEST(Moved, OldPlaceNamesTheNewOne) {
  MovedRoot root;
  config::Deck deck({"deck.toml", "[train]\npad_id = 3\n[model]\n", {}}, root);
  EXPECT_EQ(deck.problems().lines,
            (std::vector<std::string>{"deck.toml:2: train.pad_id: has moved: write model.pad_id"}));
  EXPECT_EQ(root.model.pad_id, 3) << "the deck of an old checkpoint is not understood";
  EXPECT_EQ(deck.flat().at("model.pad_id"), "3");
}

TEST(Moved, NewPlaceWins) {
  MovedRoot root;
  config::Deck deck({"deck.toml", "[train]\npad_id = 3\n[model]\npad_id = 5\n", {}}, root);
  EXPECT_EQ(deck.problems().lines.size(), 1u);
  EXPECT_EQ(root.model.pad_id, 5);
}

TEST(Moved, NoDeckNoError) {
  MovedRoot root;
  config::Deck deck({"deck.toml", "[model]\npad_id = 2\n", {}}, root);
  EXPECT_FALSE(deck.problems().any());
  EXPECT_EQ(root.model.pad_id, 2);
}

}  // namespace
