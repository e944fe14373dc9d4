// SPDX-License-Identifier: Apache-2.0
// Tests the deck's tables, through the configuration engine.
#include "data/options.hpp"

#include <gtest/gtest.h>

#include "data/dataset.hpp"
#include "data/sources/synthetic.hpp"
#include "data/sources/webdataset.hpp"
#include "support.hpp"
#include "tests/unit/recorded.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

struct Root {
  Sections sections;
  void bind(config::Table& t) { sections.bind(t); }
};

std::vector<std::string> problems_of(const std::string& text, Root& root) {
  config::Deck deck({"deck.toml", text, {}}, root);
  for (const Problem& p : root.sections.problems()) deck.error(p.key, p.text);
  return deck.problems().lines;
}

constexpr const char* kGood = R"(
[tokenizer]
emoji = { kind = "sentencepiece", path = "tokenizer.model" }
[data.train]
kind       = "webdataset"
path       = "train-{000..003}.tar"
fields     = { image = "png", text = "txt" }
preprocess = '''decode | resize(64) | value_range(-1, 1)
              | tokenize("emoji", max_len=24, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels")'''
[data.val]
kind       = "webdataset"
path       = "val-000.tar"
fields     = { image = "png", text = "txt" }
preprocess = "@train"
[data.made_up]
kind = "synthetic"
examples = 100
image_size = 32
[loader]
threads = 3
)";

TEST(DataOptions, Deck) {
  Root root;
  EXPECT_EQ(problems_of(kGood, root), std::vector<std::string>{});
  const Sections& s = root.sections;
  EXPECT_EQ(s.loader.threads, 3);
  EXPECT_EQ(s.loader.prefetch, 4);
  EXPECT_EQ(s.preprocess_of("val"), s.data.at("train").preprocess);
  EXPECT_EQ(text_of(s.spec_of("val")), "image f32 [64,64,3], labels i32 [24]");
  EXPECT_EQ(text_of(s.spec_of("made_up")), "image f32 [32,32,3], labels i32 [64]");
  auto* options = dynamic_cast<const WebdatasetOptions*>(s.data.at("train").source_options());
  ASSERT_NE(options, nullptr);
  EXPECT_EQ(options->fields.at("text"), "txt");
}

TEST(DataOptions, Problems) {
  auto bad = [](std::string from, std::string to, std::vector<std::string> parts) {
    SCOPED_TRACE(to);
    std::string text = kGood;
    text.replace(text.find(from), from.size(), to);
    Root root;
    std::vector<std::string> lines = problems_of(text, root);
    ASSERT_FALSE(lines.empty());
    for (const std::string& part : parts)
      EXPECT_NE(lines[0].find(part), std::string::npos) << part << "\n  in " << lines[0];
  };
  bad("\"@train\"", "\"@trian\"",
      {"deck.toml:", "data.val.preprocess", "no [data.trian]", "nearest is 'train'"});
  bad("\"@train\"", "\"@val\"", {"data.val.preprocess", "leads back to itself"});
  bad("resize(64)", "resze(64)", {"data.train.preprocess", "character 10", "nearest is 'resize'"});
  bad("tokenize(\"emoji\"", "tokenize(\"emoij\"",
      {"data.train.preprocess", "no [tokenizer.emoij]", "nearest is 'emoji'"});
  bad("decode |", "", {"data.train.preprocess", "encoded bytes"});
  bad("{000..003}", "{000..", {"data.train.path", "braces"});
  bad("image = \"png\"", "image = \".png\"", {"data.train.fields", ".png"});
  bad("text = \"txt\"", "text = \"png\"", {"data.train.fields", "two fields"});
  bad("\"synthetic\"", "\"sinthetic\"", {"data.made_up.kind", "synthetic"});
  bad("image_size = 32", "image_sise = 32", {"data.made_up.image_sise", "image_size"});
  bad("threads = 3", "threads = 0", {"loader.threads"});
  bad("threads = 3", "stage_drr = \"x\"", {"loader.stage_drr"});
  bad(", path = \"tokenizer.model\"", "", {"tokenizer.emoji", "path"});
}

TEST(DataOptions, OpensADataset) {
  test::TemporaryDirectory dir;
  test::TarText tar;
  std::string png = test::read_file(tests::source_file("tests/golden/images/e_rgb_37x53.png"));
  tar.add("0.png", png)
      .add("0.txt", "A Blue Boat")
      .add("1.png", png.substr(0, 200))
      .add("1.txt", "x");
  test::write_file(dir / "s.tar", tar.end());
  Root root;
  constexpr const char* kDeck = R"deck(
[tokenizer.t]
path = "{}/tokenizer/unigram.model"
[data.d]
path = "{}"
fields = {{ image = "png", text = "txt" }}
preprocess = "decode | resize(8) | tokenize('t', max_len=6, eos='sticky') | keep('image', 'labels')"
[data.n]
path = "none.tar"
fields = {{ image = "png" }}
)deck";
  std::string text = fmt::format(kDeck, tests::source_file("tests/golden"), dir / "s.tar");
  ASSERT_EQ(problems_of(text, root), std::vector<std::string>{});
  Tokenizers tokenizers = root.sections.tokenizers();
  std::unique_ptr<Dataset> set =
      open_dataset(root.sections, tokenizers, "d", {.write_index = false});
  EXPECT_EQ(set->size(), 2);
  EXPECT_EQ(text_of(set->spec()), "image u8 [8,8,3], labels i32 [6]");
  EXPECT_EQ(set->spec().at("labels").limit, 168);
  Sample sample = set->get(0, 0);
  EXPECT_EQ(set->counts().at("labels.captions"), 1);
  expect_error(Exit::data, {"data.d: ", "s.tar:1: decode: broken PNG"}, [&] { set->get(1, 1); });
  expect_error(Exit::data, {"data.n: ", "none.tar"},
               [&] { open_dataset(root.sections, tokenizers, "n", {}); });
  expect_error(Exit::config, {"data.m: there is no [data.m]"},
               [&] { open_dataset(root.sections, tokenizers, "m", {}); });
}

}  // namespace
}  // namespace data
