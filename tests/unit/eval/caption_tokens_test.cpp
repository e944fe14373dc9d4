// SPDX-License-Identifier: Apache-2.0
// Tests the words of captions: against recorded tokens of the published COCO scorer, which runs
// PTBTokenizer and drops punctuation (record_caption_scores.py).
#include "eval/captions/caption_tokens.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/recorded.hpp"

namespace caption_tokens_test {
namespace {

using eval::tokenize_caption;

TEST(CaptionTokens, AreThoseOfThePublishedScorer) {
  const std::string name = tests::source_file("tests/data/caption_tokens.jsonl");
  std::ifstream file(name);
  ASSERT_TRUE(file) << name;
  int captions = 0, different = 0;
  for (std::string line; std::getline(file, line); ++captions) {
    // The caption, its published tokens, and ours if they differ on purpose.
    const auto row = nlohmann::json::parse(line).get<std::vector<std::string>>();
    ASSERT_TRUE(row.size() == 2 || row.size() == 3) << line;
    EXPECT_EQ(tokenize_caption(row[0]), row.back()) << row[0];
    if (row.size() == 2) continue;
    ++different;
    EXPECT_NE(row[1], row[2]) << row[0] << ": the third text is needless";
  }
  EXPECT_EQ(captions, 422);
  EXPECT_LE(different, 20);
}

TEST(CaptionTokens, DropPunctuationAndSplitContractions) {
  EXPECT_EQ(tokenize_caption("A man's dog isn't here, \"yet\"."), "a man 's dog is n't here yet");
  EXPECT_EQ(tokenize_caption("I cannot see St. Helena (U.S.)!"),
            "i can not see st. helena -lrb- u.s. -rrb-");
  EXPECT_EQ(tokenize_caption("No!! 20% of $1,000.50"), "no !! 20 % of $ 1,000.50");
}

TEST(CaptionTokens, AreUnchangedByASecondPass) {
  // Captions that are tokenized already keep their words.
  for (const char* caption :
       {"a man 's dog is n't here", "two red double-decker buses", "st. mary"})
    EXPECT_EQ(tokenize_caption(caption), caption);
}

TEST(CaptionTokens, OfOddBytes) {
  EXPECT_EQ(tokenize_caption(""), "");
  EXPECT_EQ(tokenize_caption(" . , \n"), "");
  EXPECT_EQ(tokenize_caption("a\nb\r\nc\u2028d"), "a b c d");
  // Bytes that are not UTF-8 are letters: cut off, alone, too long, surrogates, beyond U+10FFFF.
  for (const std::string odd :
       {"a\xe7\x8c", "\xff", "b\x80z", "\xc0\xaf", "\xe0\x80\xaf", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf0\x8f\xbf\xbf"})
    EXPECT_EQ(tokenize_caption(odd + " C"), odd + " c");
  EXPECT_EQ(tokenize_caption(std::string("a\0b", 3)), std::string("a \0 b", 5));
  EXPECT_EQ(tokenize_caption("fire\U0001f525 dog"), "fire dog");
}

TEST(CaptionTokens, NoTextOfManySignsFails) {
  // Every text of up to five of these characters ends, and its tokens hold no white space.
  const std::vector<std::string> signs = {"a", "U", "t", "5",      "'", ".",
                                          "-", "/", " ", "\u2019", "n"};
  size_t texts = 1;
  for (int length = 1; length <= 5; ++length) {
    texts *= signs.size();
    for (size_t number = 0; number < texts; ++number) {
      std::string text;
      size_t rest = number;
      for (int i = 0; i < length; ++i) {
        text += signs[rest % signs.size()];
        rest /= signs.size();
      }
      const std::string tokens = tokenize_caption(text);
      ASSERT_EQ(tokens.find("  "), std::string::npos) << text;
      ASSERT_FALSE(tokens.starts_with(' ') || tokens.ends_with(' ')) << text;
    }
  }
}

TEST(SplitAtWhiteSpace, SplitsAsPythonDoes) {
  // The white space of Python's str.split(): python3 -c 'print([hex(i) for i in range(0x110000) if
  // not chr(i).split()])'.
  using Words = std::vector<std::string_view>;
  const Words spaces = {"\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",
                        "\x1d",   "\x1e",   "\x1f",   " ",      "\u0085", "\u00a0",
                        "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004",
                        "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
                        "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  for (std::string_view space : spaces) {
    const std::string text =
        std::string(space) + "a" + std::string(space) + std::string(space) + "b";
    EXPECT_EQ(eval::split_at_white_space(text), (Words{"a", "b"})) << text;
  }
  for (std::string_view other :
       {"\u200b", "\u2010", "\u180e", "\x85", "\x1b", "\ufeff", "\u2027"}) {
    const std::string text = "a" + std::string(other) + "b";
    EXPECT_EQ(eval::split_at_white_space(text), Words{text});
  }
  EXPECT_EQ(eval::split_at_white_space(" "), Words{});
  EXPECT_EQ(eval::split_at_white_space(""), Words{});
}

}  // namespace
}  // namespace caption_tokens_test
