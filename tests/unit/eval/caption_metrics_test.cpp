// SPDX-License-Identifier: Apache-2.0
// Tests BLEU, ROUGE-L and CIDEr-D: with closed forms, and with the recorded numbers of the
// published COCO scorer for 1,000 made sets (record_caption_scores.py).
#include "eval/captions/caption_metrics.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "tests/unit/recorded.hpp"

namespace caption_metrics_test {
namespace {

using Captions = std::vector<std::string>;
using Numbers = std::array<double, 6>;  // BLEU-1 to BLEU-4, ROUGE-L, CIDEr-D

const double kTiny = 1e-8;  // more than the scorer's own constants change a BLEU of 0.1 to 1

eval::CaptionScores score(const std::string& candidate, const Captions& references) {
  const eval::CaptionMetrics metrics = eval::tokenized_caption_metrics({candidate}, {references});
  EXPECT_EQ(metrics.examples.size(), 1u);
  // A set of one example has the numbers of its example.
  EXPECT_EQ(metrics.set.bleu, metrics.examples.at(0).bleu);
  EXPECT_EQ(metrics.set.rouge_l, metrics.examples.at(0).rouge_l);
  EXPECT_EQ(metrics.set.cider_d, metrics.examples.at(0).cider_d);
  return metrics.set;
}

// Returns the CIDEr-D of the first example of a set of two. The second one has other words, so each
// word of the first weighs log 2, whether or not its references contain the word.
double cider_of_two(const std::string& candidate, const Captions& references) {
  return eval::tokenized_caption_metrics({candidate, "other"}, {references, {"words"}})
      .examples.at(0)
      .cider_d;
}

TEST(Bleu, CountsAWordAsOftenAsOneReferenceHasIt) {
  // The example of Papineni et al. (2002): 2 of 7 words, no pair of words.
  const auto bleu =
      score("the the the the the the the", {"the cat is on the mat", "there is a cat on the mat"})
          .bleu;
  EXPECT_NEAR(bleu[0], 2.0 / 7, kTiny);
  EXPECT_NEAR(bleu[1], std::sqrt(2.0 / 7 * 1e-15 / 6), 1e-15);  // the scorer's constant for 0
}

TEST(Bleu, IsTheGeometricMeanOfPrecisions) {
  // The reference has 5 words, 3 pairs, 1 triple and no run of four of "a b c d e f".
  const auto bleu = score("a b c d e f", {"a b c x e f d"}).bleu;
  const double shorter = std::exp(1 - 7.0 / 6);
  EXPECT_NEAR(bleu[0], shorter, kTiny);  // all 6 words, in another order
  EXPECT_NEAR(bleu[1], shorter * std::sqrt(1 * 3.0 / 5), kTiny);
  EXPECT_NEAR(bleu[2], shorter * std::cbrt(1 * 3.0 / 5 * 1 / 4), kTiny);
  EXPECT_NEAR(bleu[3], shorter * std::pow(1 * 3.0 / 5 * 1 / 4 * 1e-15 / 3, 0.25), 1e-12);
}

TEST(Bleu, PenalizesCandidatesShorterThanTheClosestReference) {
  EXPECT_NEAR(score("a b", {"a b c d"}).bleu[1], std::exp(-1), kTiny);
  EXPECT_NEAR(score("a b c d", {"a b"}).bleu[0], 0.5, kTiny);
  // Lengths 3 and 7 are equally close to 5, and the shorter one counts.
  EXPECT_NEAR(score("a b c d e", {"a b c d e f g", "a b c"}).bleu[0], 1, kTiny);
  EXPECT_NEAR(score("a b c d e", {"a b c", "a b c d e f g"}).bleu[0], 1, kTiny);
  EXPECT_NEAR(score("a b c d e", {"a b c d e f"}).bleu[0], std::exp(1 - 6.0 / 5), kTiny);
}

TEST(Bleu, OfASetAddsCountsNotScores) {
  const eval::CaptionMetrics metrics =
      eval::tokenized_caption_metrics({"a b c d e f", "x y"}, {{"a b c d e f"}, {"p q r s"}});
  EXPECT_NEAR(metrics.examples[0].bleu[0], 1, kTiny);
  EXPECT_NEAR(metrics.examples[1].bleu[0], 0, kTiny);
  EXPECT_NEAR(metrics.set.bleu[0], 6.0 / 8 * std::exp(1 - 10.0 / 8), kTiny);
  EXPECT_NEAR(metrics.set.bleu[1], std::sqrt(6.0 / 8 * 5.0 / 6) * std::exp(1 - 10.0 / 8), kTiny);
}

TEST(RougeL, IsTheFMeasureOfTheLongestCommonSubsequence) {
  const auto f = [](double p, double r) { return (1 + 1.44) * p * r / (r + 1.44 * p); };
  EXPECT_NEAR(score("a b c d", {"a c e"}).rouge_l, f(2.0 / 4, 2.0 / 3), 1e-15);
  EXPECT_NEAR(score("a c e", {"a b c d"}).rouge_l, f(2.0 / 3, 2.0 / 4), 1e-15);
  // The best precision (3 of 4) and the best recall (1 of 1) come from two references.
  EXPECT_NEAR(score("a b c d", {"d", "x a y b z c"}).rouge_l, f(3.0 / 4, 1), 1e-15);
  EXPECT_NEAR(score("d c b a", {"a b c d"}).rouge_l, 1.0 / 4, 1e-15);
  EXPECT_EQ(score("a b", {"c d"}).rouge_l, 0);
}

TEST(RougeL, OfASetIsTheMean) {
  const eval::CaptionMetrics metrics =
      eval::tokenized_caption_metrics({"a", "b", "c d"}, {{"a"}, {"x"}, {"c d"}});
  EXPECT_EQ(metrics.set.rouge_l, 2.0 / 3);
}

TEST(CiderD, IsTenForACopyOfFourWords) {
  EXPECT_NEAR(cider_of_two("a b c d", {"a b c d"}), 10, 1e-12);
  // Shorter captions have no n-grams of the higher orders.
  EXPECT_NEAR(cider_of_two("a b c", {"a b c"}), 7.5, 1e-12);
  EXPECT_NEAR(cider_of_two("a", {"a"}), 2.5, 1e-12);
  EXPECT_EQ(cider_of_two("a b c d", {"e f g h"}), 0);
}

TEST(CiderD, PenalizesADifferenceOfLengths) {
  // The lengths are counted in bigrams: 3 and 5.
  const double cosines =
      4 / std::sqrt(4.0 * 6) + 3 / std::sqrt(3.0 * 5) + 2 / std::sqrt(2.0 * 4) + 1 / std::sqrt(3.0);
  EXPECT_NEAR(cider_of_two("a b c d", {"a b c d e f"}), 10 * cosines / 4 * std::exp(-4 / 72.0),
              1e-12);
  // One word and no word differ by no bigram, two words and one by one.
  EXPECT_NEAR(cider_of_two("a b", {"a"}), 10 / std::sqrt(2) / 4 * std::exp(-1 / 72.0), 1e-12);
}

TEST(CiderD, ClipsRepeatedWords) {
  // Word a weighs 4 in the candidate, and counts as 1 in the product; the reference lacks the pair
  // "a a".
  EXPECT_NEAR(cider_of_two("a a a a", {"a b"}),
              10 * (1 / (4 * std::sqrt(2))) / 4 * std::exp(-4 / 72.0), 1e-12);
  EXPECT_NEAR(cider_of_two("a a", {"a"}), 10 * (1.0 / 2) / 4 * std::exp(-1 / 72.0), 1e-12);
  // A word that the reference repeats is not clipped.
  EXPECT_NEAR(cider_of_two("a", {"a a"}), 10 * 1.0 / 4 * std::exp(-1 / 72.0), 1e-12);
}

TEST(CiderD, WeighsWordsByTheSetsThatContainThem) {
  // Word s is in the references of both examples and weighs 0. Word t is in both references of one
  // example, which counts once, so it weighs log 2.
  const eval::CaptionMetrics metrics =
      eval::tokenized_caption_metrics({"s", "t"}, {{"s t", "t s"}, {"s"}});
  EXPECT_EQ(metrics.examples[0].cider_d, 0);
  EXPECT_EQ(metrics.examples[1].cider_d, 0);
  const eval::CaptionMetrics swapped =
      eval::tokenized_caption_metrics({"t", "s"}, {{"s t", "t s"}, {"s"}});
  // The only unigram with a weight is t, and the references have one bigram more.
  EXPECT_NEAR(swapped.examples[0].cider_d, 2.5 * std::exp(-1 / 72.0), 1e-12);
  EXPECT_NEAR(swapped.set.cider_d, 1.25 * std::exp(-1 / 72.0), 1e-12);
}

TEST(CiderD, UsesFrequenciesOfReferencesAndNotOfCandidates) {
  // In a set of three, a is in the references of two examples and b of one: weights log 1.5, log 3.
  const eval::CaptionMetrics metrics =
      eval::tokenized_caption_metrics({"a b", "b", "b"}, {{"a b"}, {"a"}, {"c"}});
  EXPECT_NEAR(metrics.examples[0].cider_d, 5, 1e-12);
  const double a = std::log(1.5), b = std::log(3.0);
  const eval::CaptionMetrics other =
      eval::tokenized_caption_metrics({"b c", "a", "c"}, {{"a b"}, {"a"}, {"c"}});
  EXPECT_NEAR(other.examples[0].cider_d,
              2.5 * b * b / (std::sqrt(b * b + b * b) * std::sqrt(a * a + b * b)), 1e-12);
}

TEST(CiderD, OfOneExampleIsZero) { EXPECT_EQ(score("a b c d", {"a b c d", "a b"}).cider_d, 0); }

TEST(CaptionMetrics, OddCaptionsScoreAsThePublishedScorerHasIt) {
  const auto empty = score("", {"a b"});
  EXPECT_EQ(empty.bleu, (std::array<double, 4>{}));
  EXPECT_EQ(empty.rouge_l, 0);
  const auto both_empty = score("", {"", "a b"});
  EXPECT_EQ(both_empty.bleu, (std::array<double, 4>{}));
  EXPECT_EQ(both_empty.rouge_l, 1);  // one empty word equals another
  EXPECT_EQ(both_empty.cider_d, 0);
  // CIDEr-D of a set without words: Python ends with an error here.
  EXPECT_EQ(eval::tokenized_caption_metrics({"a", "b"}, {{""}, {""}}).set.cider_d, 0);
  EXPECT_EQ(cider_of_two("", {"a b"}), 0);
  // Two spaces hold an empty word for ROUGE-L alone, and other white space separates no words
  // there.
  const auto spaces = score("a  b", {"a b"});
  EXPECT_NEAR(spaces.bleu[1], 1, kTiny);
  EXPECT_NEAR(spaces.rouge_l, 2.44 * (2.0 / 3) / (1 + 1.44 * (2.0 / 3)), 1e-15);
  const auto ideographic = score("a\u3000b", {"a b"});
  EXPECT_NEAR(ideographic.bleu[1], 1, kTiny);
  EXPECT_EQ(ideographic.rouge_l, 0);
  // Bytes that begin like a white space and bytes that are not UTF-8 belong to words.
  EXPECT_NEAR(score("猫\u2014x\xe2\x80 \xff", {"\xff 猫\u2014x\xe2\x80"}).bleu[0], 1, kTiny);
  EXPECT_NEAR(score("猫\u2014x", {"猫 x"}).bleu[0], 0, kTiny);
}

TEST(CaptionMetrics, RawCaptionsAreTokenizedFirst) {
  const eval::CaptionMetrics raw = eval::caption_metrics(
      {"A man's dog, sitting.", "No!"}, {{"a man 's dog SITTING", "Dogs"}, {"no"}});
  const eval::CaptionMetrics tokens = eval::tokenized_caption_metrics(
      {"a man 's dog sitting", "no"}, {{"a man 's dog sitting", "dogs"}, {"no"}});
  EXPECT_GT(tokens.set.cider_d, 0);
  EXPECT_EQ(raw.set.bleu, tokens.set.bleu);
  EXPECT_EQ(raw.set.rouge_l, tokens.set.rouge_l);
  EXPECT_EQ(raw.set.cider_d, tokens.set.cider_d);
  ASSERT_EQ(raw.examples.size(), 2u);
  EXPECT_EQ(raw.examples[1].bleu, tokens.examples[1].bleu);
}

TEST(CaptionMetrics, RefusesSetsThatCannotBeScored) {
  const auto message = [](const Captions& candidates, const std::vector<Captions>& references) {
    try {
      eval::tokenized_caption_metrics(candidates, references);
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(),
                candidates.size() == references.size() ? base::Exit::data : base::Exit::internal);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message({}, {}).find("no caption to score"), std::string::npos);
  EXPECT_NE(message({"a", "b"}, {{"a"}, {}}).find("example 1 has no reference"), std::string::npos);
  EXPECT_NE(message({"a"}, {}).find("1 candidates, 0 lists"), std::string::npos);
}

// The made sets below are those of record_caption_scores.py, draw by draw.
const Captions kWords = {"a",
                         "the",
                         "cat",
                         "dog",
                         "on",
                         "red",
                         "of",
                         "with",
                         "Cat",
                         "it's",
                         "black-and-white",
                         "2",
                         "été",
                         "e\u0301t\u00e9",
                         "猫",
                         "🐱",
                         "👩‍🚀",
                         "Straße",
                         "n't",
                         "&",
                         "ключ",
                         "فيل",
                         "x",
                         "in"};
const Captions kSeparators = {" ", "  ", "\t", "\u00a0", "\u3000", "\u2028", "\x1c", " \n"};

class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  size_t below(size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return size_t(state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

struct Made {
  Captions words;
  std::string separator = " ";
  std::string text() const {
    std::string out;
    for (size_t i = 0; i < words.size(); ++i) out += (i ? separator : "") + words[i];
    return out;
  }
};

Made made_caption(Draws& draws, size_t vocabulary, bool odd) {
  const size_t kind = odd ? draws.below(16) : 15;
  if (kind == 0) return {};
  if (kind == 1) return {{kWords[draws.below(vocabulary)]}};
  if (kind == 2) {
    const std::string word = kWords[draws.below(vocabulary)];
    return {Captions(1 + draws.below(8), word)};
  }
  Made made;
  if (kind == 3) made.separator = kSeparators[draws.below(kSeparators.size())];
  const size_t length = 2 + draws.below(14);
  for (size_t i = 0; i < length; ++i) made.words.push_back(kWords[draws.below(vocabulary)]);
  return made;
}

struct MadeSet {
  Captions candidates;
  std::vector<Captions> references;
};

MadeSet made_set(size_t k) {
  Draws draws(k);
  for (int i = 0; i < 4; ++i) draws.below(2);
  const std::vector<size_t> sizes = {1, 2, 3, 5, 7, 40, 402};
  const size_t size = k < sizes.size() ? sizes[k] : 1 + draws.below(6);
  const std::array<size_t, 6> vocabularies = {1, 2, 6, 12, 24, 24};
  const size_t vocabulary = vocabularies[draws.below(6)];
  MadeSet set;
  for (size_t i = 0; i < size; ++i) {
    std::vector<Made> references;
    const size_t count = 1 + draws.below(5);
    for (size_t j = 0; j < count; ++j)
      references.push_back(made_caption(draws, vocabulary, i + j > 0));
    Made candidate = made_caption(draws, vocabulary, true);
    if (draws.below(2) && !references[0].words.empty()) {
      candidate = {references[0].words};
      const std::string& word = kWords[draws.below(vocabulary)];
      candidate.words[draws.below(candidate.words.size())] = word;
    }
    set.candidates.push_back(candidate.text());
    Captions& texts = set.references.emplace_back();
    for (const Made& reference : references) texts.push_back(reference.text());
  }
  return set;
}

Numbers numbers(const eval::CaptionScores& s) {
  return {s.bleu[0], s.bleu[1], s.bleu[2], s.bleu[3], s.rouge_l, s.cider_d};
}

TEST(CaptionMetrics, AgreesWithThePublishedScorer) {
  const std::string name = tests::source_file("tests/data/caption_scores.jsonl");
  std::ifstream file(name);
  std::string line;
  ASSERT_TRUE(std::getline(file, line)) << name;
  size_t sets = 0;
  int wrong = 0;
  for (; std::getline(file, line); ++sets) {
    const auto recorded = nlohmann::json::parse(line).get<std::vector<double>>();
    ASSERT_EQ(recorded.size(), 12u);
    const MadeSet set = made_set(sets);
    const eval::CaptionMetrics metrics =
        eval::tokenized_caption_metrics(set.candidates, set.references);
    ASSERT_EQ(metrics.examples.size(), set.candidates.size());
    const size_t example = sets % set.candidates.size();
    const Numbers of_set = numbers(metrics.set), of_example = numbers(metrics.examples[example]);
    for (size_t i = 0; i < 12 && wrong < 10; ++i) {
      const double ours = i < 6 ? of_set[i] : of_example[i - 6];
      const double difference = std::abs(ours - recorded[i]);
      // The file has 10 digits, so small numbers are compared as closely as large ones.
      if (difference <= 1e-9 * std::abs(recorded[i]) + 1e-14) continue;
      ADD_FAILURE() << "set " << sets << (i < 6 ? "" : ", example " + std::to_string(example))
                    << ", number " << i % 6 << ": " << ours << ", recorded " << recorded[i];
      ++wrong;
    }
  }
  EXPECT_EQ(sets, 1000u);
}

}  // namespace
}  // namespace caption_metrics_test
