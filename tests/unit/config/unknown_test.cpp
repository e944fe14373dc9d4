// SPDX-License-Identifier: Apache-2.0
// Tests unknown names.
#include "config/unknown.hpp"

#include "recipe.hpp"

namespace {

using recipe::at;
using recipe::next_line;
using recipe::problems;
using recipe::with;
using recipe::with_line;
using Lines = std::vector<std::string>;

TEST(Unknown, Names) {
  EXPECT_EQ(problems(with_line(5, "globl_batch = 64\nglobal_batch = 64")),
            Lines{at(5, "train.globl_batch: unknown key; did you mean global_batch?")});
  EXPECT_EQ(with("[trian]\nx = 1\n[optimiser]\n"),
            (Lines{at(next_line, "trian: unknown table; did you mean train?"),
                   at(next_line + 2, "optimiser: unknown table; did you mean optimizer?")}));
  EXPECT_EQ(with("[[optimizer.rules]]\n"),
            Lines{at(next_line, "optimizer.rules: unknown table; did you mean rule?")});
  // The name is right and the table is wrong.
  EXPECT_EQ(with("[log]\nlearning_rate = 1\n"),
            Lines{at(next_line + 1,
                     "log.learning_rate: unknown key; [optimizer] has a key of this name")});
  EXPECT_EQ(with("[encoder]\n"),
            Lines{at(next_line, "encoder: unknown table; [model] has a key of this name")});
  EXPECT_EQ(with("[log]\nmatch = 1\n"),
            Lines{at(next_line + 1,
                     "log.match: unknown key; [[optimizer.rule]] has a key of this name")});
  EXPECT_EQ(with("[log]\nwarmup_steps = 1\n"),
            Lines{at(next_line + 1,
                     "log.warmup_steps: unknown key; [schedule.NAME] has a key of this name")});
  // The name is misspelt and belongs to another table.
  EXPECT_EQ(with("[log]\nlerning_rate = 1\n"),
            Lines{at(next_line + 1,
                     "log.lerning_rate: unknown key; did you mean optimizer.learning_rate?")});
  // No name is near: the message has the names of this table, or the command that lists them.
  EXPECT_EQ(with("[model.encoder]\nzzzz = 1\n"),
            Lines{at(next_line + 1, "model.encoder.zzzz: unknown key; known here: width, heads")});
  EXPECT_EQ(problems(with_line(3, "data = 'coco'\nzzzz = 1")),
            Lines{at(4,
                     "train.zzzz: unknown key; known here: data, mixture, total_*, cooldown_*, "
                     "global_batch, micro_batch, shuffle, label_smoothing, start_steps")});
  // "match" is not near enough to be proposed from another table.
  EXPECT_EQ(with("[model.encoder]\npatch = 1\n"),
            Lines{at(next_line + 1, "model.encoder.patch: unknown key; known here: width, heads")});
  // A common ending does not make names alike.
  EXPECT_EQ(with("[log]\nlines_every_steps = 1\n").at(0).find("did you mean"), std::string::npos);
  EXPECT_EQ(with("[log]\nconsol_every_steps = 1\n"),
            Lines{at(next_line + 1,
                     "log.consol_every_steps: unknown key; did you mean console_every_steps?")});
  // Control characters do not reach the terminal.
  EXPECT_EQ(with("[model.encoder]\n\"\\u001b[31m\" = 1\n").at(0).find('\x1b'), std::string::npos);
}

TEST(Unknown, ManyKeysAreNotListed) {
  struct Many {
    std::vector<int64_t> values = std::vector<int64_t>(13);
    void bind(config::Table& t) {
      for (size_t i = 0; i < values.size(); ++i) t.key("number" + std::to_string(i), values[i], "");
    }
  };
  struct Root {
    Many many;
    void bind(config::Table& t) { t.table("many", many, ""); }
  } root;
  config::Deck deck({"run.toml", "[many]\nzzzz = 1\n", {}}, root);
  EXPECT_EQ(deck.problems().lines,
            Lines{at(2, "many.zzzz: unknown key; --describe many lists the keys")});
}

TEST(Unknown, KeysInListElements) {
  EXPECT_EQ(problems(with_line(12, "decay_scale = 0\nmacth = 'x'")),
            Lines{at(13, "optimizer.rule[1].macth: unknown key; did you mean match?")});
}

// ---- how near is near: the last name that is proposed, and the first that is not

std::string nearest(const std::string& name, const std::string& known) {
  const Lines names{known};
  return config::nearest(name, names);
}

TEST(Nearest, OneEditAndOneMoreForEveryFourLetters) {
  struct Border {
    const char *known, *near, *far;
  };
  for (const Border& b :
       {Border{"dir", "dri", "dxx"}, Border{"dir", "dr", "x"}, Border{"path", "pxxh", "pxxx"},
        Border{"threads", "thrxxds", "thrxxxs"}, Border{"prefetch", "prexxxch", "prexxxxh"},
        Border{"global_batch", "glxxxx_batch", "xlxxxx_batch"}}) {
    EXPECT_EQ(nearest(b.near, b.known), b.known) << b.near;
    EXPECT_EQ(nearest(b.far, b.known), "") << b.far;
  }
}

TEST(Nearest, TheEndingOfADurationDoesNotCount) {
  EXPECT_EQ(nearest("dri_steps", "dir_steps"), "dir_steps");
  EXPECT_EQ(nearest("dxx_steps", "dir_steps"), "");
  EXPECT_EQ(nearest("pxxh_fraction", "path_fraction"), "path_fraction");
  EXPECT_EQ(nearest("pxxx_fraction", "path_fraction"), "");
}

TEST(Nearest, VeryLongNamesAreNotCompared) {
  EXPECT_EQ(nearest(std::string(64, 'a'), std::string(63, 'a') + "b"), std::string(63, 'a') + "b");
  EXPECT_EQ(nearest(std::string(65, 'a'), std::string(64, 'a') + "b"), "");
}

TEST(Nearest, ByItsInitials) {
  EXPECT_EQ(nearest("lr", "learning_rate"), "learning_rate");
  EXPECT_EQ(nearest("kes", "keep_every_steps"), "keep_every_steps");
  EXPECT_EQ(nearest("lx", "learning_rate"), "");
  EXPECT_EQ(nearest("s", "xyz"), "");  // one letter is too little for a proposal
}

TEST(Nearest, KeysPartByPart) {
  const Lines keys{"optimizer.b1",
                   "optimizer.learning_rate",
                   "optimizer.rule[0].match",
                   "train.total_steps",
                   "train",
                   "log.b1"};
  auto near = [&](const std::string& key) { return config::nearest_key(key, keys); };
  EXPECT_EQ(near("optimizer.lr"), "optimizer.learning_rate");
  EXPECT_EQ(near("optimizer.learing_rate"), "optimizer.learning_rate");
  EXPECT_EQ(near("optimizr.b1"), "optimizer.b1");
  EXPECT_EQ(near("optimizer.b2"), "optimizer.b1");
  EXPECT_EQ(near("optimizer.zz"), "");
  EXPECT_EQ(near("loc.b1"), "log.b1");
  EXPECT_EQ(near("train.total"), "train.total_steps");
  EXPECT_EQ(near("optimizer.rule[0].mtach"), "optimizer.rule[0].match");
  EXPECT_EQ(near("trian"), "train");
  EXPECT_EQ(near("trian.more"), "");
}

TEST(Unknown, ANameOfAnotherTableMustBeNearer) {
  auto proposed = [](const std::string& name) {
    const Lines lines = with("[log]\n" + name + " = 1\n");
    return lines.size() == 1 && lines[0].find("did you mean") != std::string::npos;
  };
  EXPECT_FALSE(proposed("widht"));        // one edit in five letters
  EXPECT_TRUE(proposed("frozne"));        // in six
  EXPECT_FALSE(proposed("lerning_rte"));  // two in eleven
  EXPECT_TRUE(proposed("learnign_rte"));  // in twelve
}

TEST(Unknown, AtMostTwelveNamesAreListedAndThreeTables) {
  struct Part {
    int64_t same = 0;
    void bind(config::Table& t) { t.key("same", same, ""); }
  };
  struct Root {
    std::vector<int64_t> values = std::vector<int64_t>(12);
    Part a, b, c, d;
    void bind(config::Table& t) {
      struct Many {
        std::vector<int64_t>& values;
        void bind(config::Table& m) {
          for (size_t i = 0; i < values.size(); ++i)
            m.key("number" + std::to_string(i), values[i], "");
        }
      } many{values};
      t.table("many", many, "");
      t.table("a", a, "");
      t.table("b", b, "");
      t.table("c", c, "");
      t.table("d", d, "");
    }
  } root;
  config::Deck listed({"run.toml", "[many]\nzzzz = 1\n", {}}, root);
  EXPECT_EQ(listed.problems().lines.at(0),
            at(2,
               "many.zzzz: unknown key; known here: number0, number1, number2, number3, number4, "
               "number5, number6, number7, number8, number9, number10, number11"));
  config::Deck places({"run.toml", "[many]\nsame = 1\n", {}}, root);
  EXPECT_EQ(places.problems().lines.at(0),
            at(2, "many.same: unknown key; [a], [b], [c] have a key of this name"));
}

}  // namespace
