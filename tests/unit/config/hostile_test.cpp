// SPDX-License-Identifier: Apache-2.0
// Tests decks that are made to exhaust stack, memory or time, and decks of noise.

#include "base/random.hpp"
#include "recipe.hpp"

namespace {

using recipe::good;
using recipe::parse;
using recipe::problems;
using Lines = std::vector<std::string>;

std::string repeat(const std::string& text, size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(Hostile, Depth) {
  const Lines dots{"run.toml:1: syntax: a key with more than 16 dots, the limit for a deck"};
  EXPECT_EQ(problems("[a" + repeat(".a", 1'000'000) + "]\n"), dots);
  EXPECT_EQ(problems("a" + repeat(" . a", 1'000'000) + " = 1\n"), dots);
  EXPECT_EQ(problems("a" + repeat(".\"a\"", 1'000'000) + " = 1\n"), dots);
  const Lines nested{"run.toml:1: syntax: values nested more than 16 deep, the limit for a deck"};
  EXPECT_EQ(problems("a = " + repeat("[", 1'000'000)), nested);
  EXPECT_EQ(problems("a = " + repeat("{ a = ", 500'000)), nested);
  // Dots in text, comments and lists of numbers do not count; 16 of both are allowed.
  EXPECT_EQ(
      problems(std::string(good) + "# " + repeat(".", 100) + "\n[env]\nA = '" + repeat(".", 100) +
               "'\nB = '''\n" + repeat("[.", 100) + "'''\nC = \"\\\"" + repeat("{.", 100) + "\"\n"),
      Lines{});
  EXPECT_EQ(problems(std::string(good) + "[log]\nlevels = [" + repeat("0.5, ", 100) + "]\n"),
            Lines{});
  EXPECT_EQ(problems(std::string(good) + "x" + repeat(".y", 16) + " = " + repeat("[", 16) +
                     repeat("]", 16) + "\n")
                .size(),
            1u);
}

TEST(Hostile, Amount) {
  EXPECT_EQ(problems(repeat("[[a]]\n", 200'000)),
            Lines{"run.toml:100001: syntax: more than 100000 values, the limit for a deck"});
  EXPECT_EQ(problems("a = [" + repeat("1,", 200'000) + "]"),
            Lines{"run.toml:1: syntax: more than 100000 values, the limit for a deck"});
  EXPECT_EQ(problems(std::string(5 << 20, ' ')),
            Lines{"run.toml:1: syntax: more than 4 MiB of text, the limit for a deck"});
  Lines many = problems(good + repeat("[[optimizer.rule]]\nmatch = 'x'\n", 10'000));
  ASSERT_EQ(many.size(), 1u);
  EXPECT_EQ(many[0], "run.toml:8: optimizer.rule: more than 4096 tables in lists and named tables");
}

TEST(Hostile, ManyProblemsAreCut) {
  std::string text = good;
  for (int i = 0; i < 20'000; ++i) text += "[nothing" + std::to_string(i) + "]\n";
  Lines lines = problems(text);
  ASSERT_EQ(lines.size(), 101u);
  EXPECT_EQ(lines.back(), "run.toml: 19900 more problems");
}

TEST(Hostile, LongNamesAndTexts) {
  std::string name(1'000'000, 'a');
  for (const std::string& text :
       {name + " = 1\n", "\"" + name + "\" = 1\n", "[" + name + "]\n", "train = '" + name + "'\n",
        "data." + name + ".path = ''\n", "train.shuffle = '" + name + "'\n"}) {
    for (const std::string& line : problems(text)) EXPECT_LT(line.size(), 400u);
  }
  for (const std::string& line :
       problems(good, {name + "=1", "train.shuffle=" + name, "optimizer.rule." + name + "=1"}))
    EXPECT_LT(line.size(), 500u);
  EXPECT_THROW(config::describe([](config::Table&) {}, name), base::Error);
}

// Every mutation of a valid deck gets a verdict. If it has no problems, the resolved deck parses
// again.
TEST(Hostile, Noise) {
  base::Stream draws(7, "config_noise");
  const std::string alphabet =
      std::string("=[]{}.,\"'#\n\\ \t_-+:0123456789eE\x01\x7f\xc3\xa9\xff") + '\0' +
      "abtruefalsinfnan";
  uint64_t n = 0;
  auto below = [&](size_t limit) { return size_t(draws.bits(n++)) % limit; };
  const std::string source =
      std::string(good) +
      "[schedule.s]\nkind = 'composite'\npart = [{ scale = 1 }, { warmup_steps = 2 }]\n"
      "[log]\ngroups = ['''a''', \"b\"]\nlevels = [0.5, 1e-1]\nflush_s = 3\n";
  int clean = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = source;
    for (size_t edits = 1 + below(2); edits > 0 && !text.empty(); --edits) {
      size_t at = below(text.size()), length = std::min(text.size() - at, 1 + below(6));
      switch (below(4)) {
        case 0:
          text[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, 1, alphabet[below(alphabet.size())]);
          break;
        default:
          text.insert(below(text.size()), text.substr(at, length));
          break;
      }
    }
    std::vector<std::string> overrides;
    if (below(4) == 0) overrides.push_back(text.substr(below(text.size() + 1), below(30)));
    auto r = parse(text, overrides);
    for (const std::string& line : r->problems())
      EXPECT_TRUE(line.starts_with("run.toml:") || line.starts_with("--set ")) << line;
    if (r->problems().empty()) {
      ++clean;
      auto again = parse(r->deck->resolved());
      EXPECT_EQ(again->problems(), Lines{}) << r->deck->resolved();
      EXPECT_EQ(again->deck->flat(), r->deck->flat());
    }
  }
  EXPECT_GT(clean, 100);
  EXPECT_LT(clean, 2500);
}

}  // namespace
