// SPDX-License-Identifier: Apache-2.0
// Tests keys of enums and bools whose values have names.
#include "recipe.hpp"

namespace {

enum class Sums { f32, f64 };

struct Options {
  Sums sums = Sums::f64;
  bool trace = false;
  void bind(config::Table& t) {
    t.choice("sums", sums, {{"f32", Sums::f32}, {"f64", Sums::f64}}, "type of sums")
        .on_resume(config::OnResume::never);
    t.choice("trace", trace, {{"off", false}, {"on", true}}, "whether to trace");
  }
};

struct Parsed {
  Options options;
  config::Deck deck;
  explicit Parsed(const std::string& text)
      : deck({.path = "deck.toml", .text = text, .overrides = {}}, options) {}
};

TEST(Choice, KeepsItsDefaultAndReadsNames) {
  Parsed plain("");
  EXPECT_FALSE(plain.deck.problems().any());
  EXPECT_EQ(plain.options.sums, Sums::f64);
  Parsed set("sums = \"f32\"\ntrace = \"on\"\n");
  EXPECT_FALSE(set.deck.problems().any());
  EXPECT_EQ(set.options.sums, Sums::f32);
  EXPECT_TRUE(set.options.trace);
}

TEST(Choice, ShowsNamesInDumpsAndDescriptions) {
  Parsed set("trace = \"on\"\n");
  EXPECT_EQ(set.deck.flat().at("sums"), "\"f64\"");
  EXPECT_EQ(set.deck.flat().at("trace"), "\"on\"");
  EXPECT_EQ(set.deck.on_resume("sums"), config::OnResume::never);
  EXPECT_NE(set.deck.resolved().find("sums  = \"f64\""), std::string::npos) << set.deck.resolved();
  Options options;
  const std::string text = config::describe([&](config::Table& t) { options.bind(t); }, "sums");
  EXPECT_NE(text.find("f32"), std::string::npos) << text;
  EXPECT_NE(text.find("f64"), std::string::npos) << text;
}

TEST(Choice, RefusesOtherWordsAndTypes) {
  Parsed word("sums = \"f46\"\n");
  ASSERT_EQ(word.deck.problems().lines.size(), 1u);
  EXPECT_NE(word.deck.problems().lines[0].find("f64"), std::string::npos)
      << word.deck.problems().lines[0];
  EXPECT_EQ(word.options.sums, Sums::f64);
  Parsed boolean("trace = true\n");
  EXPECT_EQ(boolean.deck.problems().lines.size(), 1u)
      << "the deck names the values, also those of a bool";
}

}  // namespace
