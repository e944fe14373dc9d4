// SPDX-License-Identifier: Apache-2.0
// Tests the bytes tokenizer, and prefixes that are given rather than predicted.
#include <gtest/gtest.h>

#include "data/ops/pipeline.hpp"
#include "support.hpp"
#include "tests/unit/recorded.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

Tokenizers bytes() { return Tokenizers({{"b", tokenizer_rows().at("bytes").make_options()}}); }

TEST(Bytes, IdsAndPieces) {
  Tokenizers tokenizers = bytes();
  std::shared_ptr<const Tokenizer> t = tokenizers.get("b");
  std::vector<int32_t> ids;
  t->encode("A\xff\n", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{3 + 65, 258, 13}));
  EXPECT_EQ(t->decode(std::vector<int32_t>{68, 0, 1, 69}), "AB");
  EXPECT_EQ(t->vocab_size(), 259);
  EXPECT_EQ(t->piece_id("<pad>"), 0);
  EXPECT_EQ(t->piece_id("</s>"), 1);
  EXPECT_EQ(t->piece_id("A"), 68);
  EXPECT_EQ(t->piece_id("AB"), std::nullopt);
  expect_error(Exit::data, {"259"}, [&] { t->decode(std::vector<int32_t>{259}); });
}

struct Result {
  std::vector<int32_t> ids;
  std::vector<float> masks;
};

Result tokenized(const std::string& arguments, const std::string& text) {
  Tokenizers tokenizers = bytes();
  Pipeline p("tokenize('b', " + arguments + ")", {{"text", FieldSpec::characters()}},
             {.tokenizers = &tokenizers});
  Sample s{{"text", text}};
  p.apply(s, 0);
  for (auto& [name, known] : p.spec()) EXPECT_EQ(mismatch(known, s.at(name)), "") << name;
  Result r;
  const Array& ids = std::get<Array>(s.at("labels"));
  r.ids.assign(ids.i32(), ids.i32() + ids.count());
  if (auto m = s.find("label_masks"); m != s.end()) {
    const Array& masks = std::get<Array>(m->second);
    r.masks.assign(masks.f32(), masks.f32() + masks.count());
  }
  return r;
}

// Without the check, bytes that are not text would be trained on as unknown pieces.
TEST(Tokenize, RefusesWhatIsNoTextAndCountsWhatIsEmpty) {
  Tokenizers tokenizers = bytes();
  Pipeline p("tokenize('b', max_len=4, eos='sticky')", {{"text", FieldSpec::characters()}},
             {.tokenizers = &tokenizers});
  auto apply = [&](const std::string& text) {
    Sample s{{"text", text}};
    p.apply(s, 0);
  };
  expect_error(Exit::data, {"tokenize", "UTF-8", "caf"}, [&] { apply("caf\xe9"); });  // Latin-1
  expect_error(Exit::data, {"tokenize", "zero byte"}, [&] { apply(std::string("a\0b", 3)); });
  apply("caf\xc3\xa9");
  apply("");
  apply(" \n");
  apply("a");
  EXPECT_EQ(p.counts(),
            (std::map<std::string, int64_t>{
                {"labels.captions", 4}, {"labels.captions_cut", 1}, {"labels.captions_empty", 2}}));
  apply("abc");  // exactly max_len ids with its end, so nothing is cut
  EXPECT_EQ(p.counts().at("labels.captions_cut"), 1);
  apply("abcd");
  EXPECT_EQ(p.counts().at("labels.captions_cut"), 2);
}

TEST(Tokenize, TellsOfAllCaptionsBeforeTheyAreCut) {
  Tokenizers tokenizers = bytes();
  Pipeline p(
      "choice(key='captions') | lower(inkey='captions', outkey='c') | tokenize('b', inkey='c', "
      "max_len=4, eos='yes')",
      {{"captions", FieldSpec::list_of_texts()}}, {.tokenizers = &tokenizers});
  Sample s{{"captions", Texts{"ABCDEF", "", "a"}}};
  Trace trace;
  p.apply(s, 0, nullptr, &trace);
  const Trace::Captions& told = trace.captions.at("labels");
  EXPECT_EQ(told.tokens, (std::vector<int64_t>{7, 1, 2}));
  EXPECT_EQ(told.max_len, 4);
  EXPECT_EQ(told.empty, 1);
  // A caption that is not chosen must be text, too, because another draw would choose it.
  Sample bad{{"captions", Texts{"a", "\xff"}}};
  expect_error(Exit::data, {"UTF-8"}, [&] { p.apply(bad, 0, nullptr, &trace); });
}

// A field that an op overwrites forgets the captions that it was chosen from.
TEST(Tokenize, TellsOfACopiedTextAlone) {
  Tokenizers tokenizers = bytes();
  Pipeline p(
      "choice(inkey='captions', outkey='t') | copy('title', 't') | tokenize('b', inkey='t', "
      "max_len=4)",
      {{"captions", FieldSpec::list_of_texts()}, {"title", FieldSpec::characters()}},
      {.tokenizers = &tokenizers});
  Sample s{{"captions", Texts{"ABCDEF", ""}}, {"title", std::string("xyz")}};
  Trace trace;
  p.apply(s, 0, nullptr, &trace);
  EXPECT_EQ(trace.captions.at("labels").tokens, std::vector<int64_t>{3});
}

TEST(Bytes, EndPadLowerAndCut) {
  using I = std::vector<int32_t>;
  constexpr int32_t a = 'a' + 3, b = 'b' + 3, A = 'A' + 3;
  EXPECT_EQ(tokenized("max_len=4, eos='sticky'", "AB").ids, (I{a, b, 1, 0}));
  EXPECT_EQ(tokenized("max_len=4, eos='sticky', lower=False", "A").ids, (I{A, 1, 0, 0}));
  EXPECT_EQ(tokenized("max_len=2, eos='sticky'", "abab").ids, (I{a, 1}));
  EXPECT_EQ(tokenized("max_len=3, eos='sticky'", "ab").ids, (I{a, b, 1}));
  EXPECT_EQ(tokenized("max_len=3, eos='yes'", "ab").ids, (I{a, b, 1}));
  EXPECT_EQ(tokenized("max_len=2, eos='sticky'", "ab").ids, (I{a, 1}));
  EXPECT_EQ(tokenized("max_len=1, eos='sticky'", "").ids, (I{1}));
  EXPECT_EQ(tokenized("max_len=2", "ab").ids, (I{a, b}));
  EXPECT_EQ(tokenized("max_len=2, eos='sticky', pad_value=7", "").ids, (I{1, 7}));
  EXPECT_EQ(tokenized("max_len=2, eos='yes'", "abab").ids, (I{a, b}));
  EXPECT_EQ(tokenized("max_len=3", "a").ids, (I{a, 0, 0}));
  EXPECT_EQ(tokenized("max_len=3, pad_value='</s>'", "a").ids, (I{a, 1, 1}));
  EXPECT_TRUE(tokenized("max_len=3", "a").masks.empty());
}

TEST(Bytes, TooLongATextIsNoCaption) {
  EXPECT_EQ(tokenized("max_len=1", std::string(1 << 20, 'a')).ids, std::vector<int32_t>{'a' + 3});
  expect_error(Exit::data, {"tokenize", "1048577 bytes"},
               [] { tokenized("max_len=1", std::string((1 << 20) + 1, 'a')); });
}

TEST(Prefix, IsGivenAndCarriesNoLoss) {
  using F = std::vector<float>;
  constexpr int32_t a = 'a' + 3, b = 'b' + 3, P = 'P' + 3;
  Result r = tokenized("max_len=6, eos='sticky', prefix='P:'", "AB");
  EXPECT_EQ(r.ids, (std::vector<int32_t>{P, ':' + 3, a, b, 1, 0}));  // not lower-cased
  EXPECT_EQ(r.masks, (F{0, 0, 1, 1, 1, 0}));
  // The caption is cut, the prefix stays, and the end is kept.
  r = tokenized("max_len=4, eos='sticky', prefix='P:'", "ABBA");
  EXPECT_EQ(r.ids, (std::vector<int32_t>{P, ':' + 3, a, 1}));
  EXPECT_EQ(r.masks, (F{0, 0, 1, 1}));
  r = tokenized("max_len=4, prefix=''", "A");  // an empty prefix still masks padding
  EXPECT_EQ(r.masks, (F{1, 0, 0, 0}));
  expect_error(Exit::config, {"prefix alone has 4 ids", "max_len is 4"},
               [] { tokenized("max_len=4, prefix='Pfff'", ""); });
}

TEST(Prefix, WithASentencepieceModel) {
  auto options = std::make_shared<SentencepieceOptions>();
  options->path = tests::source_file("tests/golden/tokenizer/unigram.model");
  Tokenizers tokenizers({{"t", options}});
  std::vector<int32_t> prefix, text;
  tokenizers.get("t")->encode("A photo", prefix);
  tokenizers.get("t")->encode("a blue boat", text);
  Pipeline p("tokenize('t', max_len=40, eos='yes', prefix='A photo', mask_key='m')",
             {{"text", FieldSpec::characters()}}, {.tokenizers = &tokenizers});
  Sample s{{"text", std::string("A Blue Boat")}};
  p.apply(s, 0);
  std::vector<int32_t> expected = prefix;
  expected.insert(expected.end(), text.begin(), text.end());
  expected.push_back(1);
  const Array &ids = std::get<Array>(s.at("labels")), &masks = std::get<Array>(s.at("m"));
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(ids.i32()[i], i < expected.size() ? expected[i] : 0);
    EXPECT_EQ(masks.f32()[i], i >= prefix.size() && i < expected.size() ? 1.0f : 0.0f);
  }
}

TEST(Prefix, SeveralTextsNeedAChoice) {
  Tokenizers tokenizers = bytes();
  expect_error(Exit::config, {"texts", "choice before"}, [&] {
    Pipeline("tokenize('b', max_len=4)", {{"text", FieldSpec::list_of_texts()}},
             {.tokenizers = &tokenizers});
  });
}

}  // namespace
}  // namespace data
