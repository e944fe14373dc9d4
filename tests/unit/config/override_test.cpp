// SPDX-License-Identifier: Apache-2.0
// Tests --set KEY=VALUE.
#include "recipe.hpp"

namespace {

using recipe::good;
using recipe::parse;
using recipe::problems;
using Lines = std::vector<std::string>;

TEST(Override, ValuesAreTomlValues) {
  auto r =
      parse(good, {"optimizer.learning_rate=5e-7", "data.coco.cache=true", "train.shuffle=\"none\"",
                   "log.levels=[0.25, 1]", "data.coco.fields={ a = 'b' }",
                   "train.micro_batch = 1_0 ", "log.flush_s=7 # seconds"});
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.optimizer.learning_rate, 5e-7);
  EXPECT_TRUE(r->root.data["coco"].cache);
  EXPECT_EQ(r->root.train.shuffle, "none");
  EXPECT_EQ(r->root.log.levels, (std::vector<double>{0.25, 1}));
  EXPECT_EQ(r->root.data["coco"].fields, (std::map<std::string, std::string>{{"a", "b"}}));
  EXPECT_EQ(r->root.train.micro_batch, 10);
  EXPECT_EQ(r->root.log.flush_s, 7);
}

TEST(Override, WhatIsNoTomlValueIsText) {
  auto r = parse(
      good, {"data.coco.path=/x/y-{00..09}.tar",
             "data.coco.preprocess=resize(64) | keep(\"image\") # all", "env.A=a=b",
             "env.B=\xc3\xa9", "env.C=two\nvalue = 3", "env.D=1\nb = 2", "train.shuffle=blocks"});
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.data["coco"].path, "/x/y-{00..09}.tar");
  EXPECT_EQ(r->root.data["coco"].preprocess, "resize(64) | keep(\"image\") # all");
  EXPECT_EQ(r->root.env.at("A"), "a=b");
  EXPECT_EQ(r->root.env.at("B"), "\xc3\xa9");
  EXPECT_EQ(r->root.env.at("C"), "two\nvalue = 3");  // the text is one value and adds no keys
  EXPECT_EQ(r->root.env.at("D"), "1\nb = 2");
  EXPECT_EQ(r->root.train.shuffle, "blocks");
}

TEST(Override, MakesTablesThatTheDeckLacks) {
  auto r = parse(good, {"log.flush_s=5", "model.encoder.width=24", "data.val.path=v",
                        "schedule.a.kind=cosine"});
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.log.flush_s, 5);
  EXPECT_EQ(r->root.model.encoder.width, 24);
  EXPECT_EQ(r->root.data.at("val").path, "v");
  EXPECT_EQ(r->root.schedule.count("a"), 1u);
}

TEST(Override, ElementsOfLists) {
  auto r = parse(good, {"optimizer.rule.0.decay_scale=0.5", "optimizer.rule[1].frozen=true",
                        "optimizer.rule.2.match=last"});
  EXPECT_EQ(r->problems(), Lines{});
  ASSERT_EQ(r->root.optimizer.rules.size(), 3u);
  EXPECT_EQ(r->root.optimizer.rules[0].decay_scale, 0.5);
  EXPECT_EQ(r->root.optimizer.rules[0].match, ".*/kernel");
  EXPECT_TRUE(r->root.optimizer.rules[1].frozen);
  EXPECT_EQ(r->root.optimizer.rules[2].match, "last");
}

TEST(Override, AListThatTheDeckLacks) {
  std::string bare =
      "format = 1\ntrain = { data = 'c', total_steps = 5, global_batch = 8 }\noptimizer.kind = "
      "'sgd'\n";
  auto r = parse(bare, {"optimizer.rule.0.match=a", "optimizer.rule.1.match=b"});
  EXPECT_EQ(r->problems(), Lines{});
  ASSERT_EQ(r->root.optimizer.rules.size(), 2u);
  EXPECT_EQ(r->root.optimizer.rules[1].match, "b");
}

TEST(Override, ElementsOfPlainLists) {
  auto r = parse(std::string(good) + "[log]\ngroups = ['a', 'b']\n",
                 {"log.groups.1=c", "log.groups.2=d"});
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.log.groups, (std::vector<std::string>{"a", "c", "d"}));
}

TEST(Override, TheLastOneWins) {
  EXPECT_EQ(parse(good, {"log.flush_s=5", "log.flush_s=6"})->root.log.flush_s, 6);
  // A whole table replaces the table.
  auto r = parse(good, {"data.coco.cache=true", "data.coco={ path = 'p' }"});
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_FALSE(r->root.data["coco"].cache);
  EXPECT_EQ(r->root.data["coco"].path, "p");
  EXPECT_TRUE(r->root.data["coco"].fields.empty());
}

TEST(Override, ReplacesAnotherSpellingOfADuration) {
  auto r = parse(good, {"train.total_epochs=2"});
  EXPECT_EQ(r->problems(), Lines{});
  EXPECT_EQ(r->root.train.total.unit, recipe::Duration::Unit::epochs);
  EXPECT_EQ(r->root.train.total.value, 2);
  EXPECT_EQ(r->deck->flat().at("train.total"), "2.0 epochs");
  EXPECT_TRUE(r->deck->has("train.total_epochs"));
  EXPECT_FALSE(r->deck->has("train.total_steps"));

  auto twice = parse(good, {"train.total_epochs=2", "train.total_examples=640"});
  EXPECT_EQ(twice->problems(), Lines{});
  EXPECT_EQ(twice->root.train.total.unit, recipe::Duration::Unit::examples);

  // An override resolves two spellings in the deck. Two spellings in one override are an error.
  std::string both = recipe::with_line(4, "total_steps = 5\ntotal_epochs = 1");
  EXPECT_EQ(problems(both, {"train.total_examples=64"}), Lines{});
  EXPECT_EQ(
      problems(good,
               {"train={ data = 'coco', global_batch = 8, total_steps = 5, total_epochs = 1 }"}),
      Lines{"--set train={ data = 'coco', global_batch = 8, total_steps = 5, total_epochs = 1 }: "
            "train.total_epochs: conflicts "
            "with total_steps; give only one of total_steps, total_examples, total_epochs, "
            "total_fraction"});
}

TEST(Override, TextIsTakenLiterally) {
  struct Root {
    std::string dir;
    void bind(config::Table& t) { t.key("dir", dir, "where"); }
  };
  for (const char* text :
       {"plain", "a b", "C:\\new\\table", "a \"b\" 'c'", "tab\there", "line\nbreak", "5", "true",
        " x ", "\"\"\"", "gr\xc3\xbc\xc3\x9f", "# no comment"}) {
    Root root;
    config::Deck deck({"deck.toml", "", {config::text_override("dir", text)}}, root);
    EXPECT_EQ(deck.problems().lines, Lines{});
    EXPECT_EQ(root.dir, text);
  }
}

TEST(Override, ProblemsNameTheOverride) {
  struct Case {
    std::string set, problem;
  };
  for (
      const Case& c : {
          Case{"log.flush_s=0", "0 is out of range: must be >= 1 s"},
          Case{"log.flush_s=soon", R"(expected an integer, found the string "soon")"},
          Case{"log.flush_s=1e1", "expected an integer, found the number 10.0; write 10"},
          Case{"train.global_batch=9223372036854775808",
               "decimal integer: '9223372036854775808' is not representable in 64 bits; the "
               "largest is "
               "9223372036854775807"},
          Case{"train.shuffle=5", R"(expected a string, found the integer 5; write "5")"},
          Case{
              "train.shuffle=blcks",
              R"("blcks" is not accepted; did you mean "blocks"? Accepted: "none", "exact", "blocks")"},
          Case{"train.totl_steps=5", "unknown key; did you mean total_steps?"},
          Case{"trian.total_steps=5", "trian: unknown table; did you mean train?"},
          Case{"train.total_percent=5",
               "write total_fraction, a fraction of the run in 0..1 (10 percent is 0.1)"},
          Case{"data.val.cache=true",
               "data.val.path: missing; add path = ... (a string) to [data.val]: where the files "
               "are"},
          Case{"optimizer.rule.2.frozen=true",
               "optimizer.rule[2].match: missing; add match = ... (a string) to optimizer.rule[2]: "
               "regular expression"},
          Case{"optimizer.rule.1.match=5", R"(expected a string, found the integer 5; write "5")"},
          Case{"optimizer.rule.3.match=a",
               "optimizer.rule has 2 elements; expected an index of at most 2 (which adds one), "
               "found \"3\""},
          Case{"optimizer.rule.first.match=a",
               "optimizer.rule has 2 elements; expected an index of at most 2 (which adds one), "
               "found \"first\""},
          Case{"optimizer.rule.99999999999999999999.match=a",
               "optimizer.rule has 2 elements; expected an index of at most 2 (which adds one), "
               "found "
               "\"99999999999999999999\""},
          Case{"optimizer.rule.-1.match=a",
               "optimizer.rule has 2 elements; expected an index of at most 2 (which adds one), "
               "found \"-1\""},
          Case{"train.data.x=1", "train.data is the string \"coco\", so no key can follow it"},
          Case{"log=5", "expected a table, found the integer 5"},
          Case{"log.flush_s", "expected KEY=VALUE, for example --set train.total_steps=100"},
          Case{"", "expected KEY=VALUE, for example --set train.total_steps=100"},
          Case{"=5", "the key before = is not of the form a.b.c"},
          Case{"a..b=5", "the key before = is not of the form a.b.c"},
          Case{"a b=5", "the key before = is not of the form a.b.c"},
          Case{"log.flush_s=",
               "no value after =; for an empty string write '\"\"' with both kinds of quotes"},
          Case{"a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=5", "a key with more than 16 parts"},
          Case{"log.groups=[\"a\"",
               "array: encountered end-of-file; if this is text, quote it for the shell and for "
               "TOML: --set "
               "'KEY=\"TEXT\"'"},
      })
    EXPECT_EQ(problems(good, {c.set}), Lines{"--set " + c.set + ": " + c.problem});
}

TEST(Override, ProblemsStandAfterThoseOfTheDeckInTheirOrder) {
  EXPECT_EQ(problems(recipe::with_line(1, "format = 3"),
                     {"log.flush_s=0", "data.coco.cache=1", "nothing=1"}),
            (Lines{"run.toml:1: format: 3 is out of range: must be 1",
                   "--set log.flush_s=0: 0 is out of range: must be >= 1 s",
                   "--set data.coco.cache=1: expected true or false, found the integer 1",
                   "--set nothing=1: unknown key; known here: format, env, train, model, "
                   "optimizer, schedule, data, log"}));
}

TEST(Override, BytesThatAreNoTextAreRefused) {
  Lines lines = problems(good, {"env.A=\xff\xfe"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("--set env.A=")) << lines[0];
}

}  // namespace
