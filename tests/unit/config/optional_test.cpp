// SPDX-License-Identifier: Apache-2.0
// Tests tables whose presence turns something on.
#include <gtest/gtest.h>

#include "config/table.hpp"

namespace {

struct Extra {
  double amount = 0.5;
  int64_t count = 0;
  void bind(config::Table& t) {
    t.key("amount", amount, "how much").min(0).max(1).on_resume(config::OnResume::may_change);
    t.key("count", count, "how many");
  }
};
struct RootWithExtra {
  int64_t size = 1;
  std::optional<Extra> extra;
  void bind(config::Table& t) {
    t.key("size", size, "a size");
    t.optional_table("extra", extra, "something more");
  }
};

TEST(OptionalTable, IsThereWhereTheDeckHasIt) {
  RootWithExtra root;
  config::Deck without({"run.toml", "size = 3\n", {}}, root);
  EXPECT_FALSE(without.problems().any());
  EXPECT_FALSE(root.extra);
  EXPECT_EQ(without.resolved().find("extra"), std::string::npos);
  EXPECT_FALSE(without.flat().contains("extra.amount"));

  for (const config::DeckSource& source :
       {config::DeckSource{"run.toml", "[extra]\namount = 0.25\n", {}},
        config::DeckSource{"run.toml", "size = 3\n", {"extra.amount=0.25"}}}) {
    RootWithExtra other;
    config::Deck deck(source, other);
    EXPECT_FALSE(deck.problems().any());
    ASSERT_TRUE(other.extra);
    EXPECT_EQ(other.extra->amount, 0.25);
    EXPECT_EQ(deck.flat().at("extra.amount"), "0.25");
    EXPECT_EQ(deck.on_resume("extra.amount"), config::OnResume::may_change);
    RootWithExtra again;  // a checkpoint's deck is read like this
    config::Deck resolved({"deck.resolved.toml", deck.resolved(), {}}, again);
    EXPECT_FALSE(resolved.problems().any());
    EXPECT_TRUE(again.extra && again.extra->amount == 0.25);
  }
  RootWithExtra empty;
  config::Deck none({"run.toml", "[extra]\n", {}}, empty);
  EXPECT_TRUE(!none.problems().any() && empty.extra && empty.extra->amount == 0.5);
}

TEST(OptionalTable, IsDescribedAndChecked) {
  EXPECT_NE(
      config::describe([](config::Table& t) { RootWithExtra().bind(t); }, "extra").find("how much"),
      std::string::npos);
  for (const char* text :
       {"[extra]\namount = 2\n", "[extra]\namuont = 1\n", "extra = 3\n", "[extar]\namount = 1\n"}) {
    RootWithExtra root;
    config::Deck deck({"run.toml", text, {}}, root);
    EXPECT_TRUE(deck.problems().any()) << text;
  }
}

}  // namespace
