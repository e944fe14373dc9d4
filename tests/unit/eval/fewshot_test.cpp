// SPDX-License-Identifier: Apache-2.0
// Tests the few-shot evaluator with made-up features: accuracies against a solution made otherwise,
// and equal bits for every size of the sets, batch and number of ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "base/numpy_random.hpp"
#include "feature_rig.hpp"

namespace few {

using feature_rig::data_set;
using feature_rig::Images;
using feature_rig::kClasses;
using feature_rig::kWidth;
using feature_rig::MadeUpFeatures;
using feature_rig::Work;

eval::EvalOptions options(const std::string& keys) { return feature_rig::options("fewshot", keys); }
std::vector<eval::Result> evaluate(const Work& work) {
  return feature_rig::evaluate("fewshot", work);
}

using Values = std::vector<std::pair<std::string, double>>;

// Solves a x = b by elimination with pivots; a is [n, n], row-major.
std::vector<long double> eliminated(std::vector<long double> a, std::vector<long double> b) {
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k; i < n; ++i)
      if (std::abs(a[i * n + k]) > std::abs(a[pivot * n + k])) pivot = i;
    for (size_t j = 0; j < n; ++j) std::swap(a[k * n + j], a[pivot * n + j]);
    std::swap(b[k], b[pivot]);
    for (size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const long double factor = a[i * n + k] / a[k * n + k];
      for (size_t j = k; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
      b[i] -= factor * b[k];
    }
  }
  for (size_t k = 0; k < n; ++k) b[k] /= a[k * n + k];
  return b;
}

// Returns the accuracy that the published formulas give, step by step.
double accuracy(const Images& train, const Images& test, int64_t shots, uint64_t seed, double l2) {
  base::NumpyRandom random(seed);
  std::vector<int64_t> rows;
  for (int32_t c = 0; c < kClasses; ++c) {
    std::vector<int64_t> of_class;
    for (int64_t i = 0; i < train.size; ++i)
      if (train.label_of(i) == c) of_class.push_back(i);
    random.shuffle(of_class);
    of_class.resize(std::min(of_class.size(), size_t(shots)));
    rows.insert(rows.end(), of_class.begin(), of_class.end());
  }
  const long double n = (long double)(rows.size());
  long double mean[kWidth] = {}, deviation[kWidth] = {};
  for (int64_t f = 0; f < kWidth; ++f) {
    for (int64_t r : rows) mean[f] += train.feature_of(r, f) / n;
    for (int64_t r : rows) deviation[f] += std::pow(train.feature_of(r, f) - mean[f], 2.0L) / n;
    deviation[f] = std::sqrt(deviation[f]) + 1e-5L;
  }
  auto standard = [&](const Images& images, int64_t i, int64_t f) {
    return f == kWidth ? 100.0L : (images.feature_of(i, f) - mean[f]) / deviation[f];
  };
  constexpr int64_t width = kWidth + 1;
  std::vector<std::vector<long double>> weights;
  for (int32_t c = 0; c < kClasses; ++c) {
    std::vector<long double> a(width * width), b(width);
    for (int64_t i = 0; i < width; ++i) {
      a[size_t(i * width + i)] = l2;
      for (int64_t r : rows) {
        b[size_t(i)] += standard(train, r, i) * (train.label_of(r) == c ? 1 : -1);
        for (int64_t j = 0; j < width; ++j)
          a[size_t(i * width + j)] += standard(train, r, i) * standard(train, r, j);
      }
    }
    weights.push_back(eliminated(a, b));
  }
  int64_t hits = 0;
  for (int64_t i = 0; i < test.size; ++i) {
    int32_t best = 0;
    long double most = -INFINITY;
    for (int32_t c = 0; c < kClasses; ++c) {
      long double score = 0;
      for (int64_t f = 0; f < width; ++f)
        score += standard(test, i, f) * weights[size_t(c)][size_t(f)];
      if (score > most) best = c;
      most = std::max(most, score);
    }
    hits += best == test.label_of(i);
  }
  return double(hits) / double(test.size);
}

TEST(Fewshot, AccuraciesAreThoseOfThePublishedFormulas) {
  const Images train{"few", 40}, test{"val", 223};
  for (double l2 : {1024.0, 0.5}) {
    const eval::Result result =
        evaluate({.test = 223,
                  .keys = fmt::format("shots = [1, 5, 30]\nseeds = 2\nl2_reg = [{:.1f}]", l2)})[0];
    Values want;
    for (int64_t shots : {1, 5, 30}) {
      const double first = accuracy(train, test, shots, 0, l2),
                   second = accuracy(train, test, shots, 1, l2);
      want.insert(want.end(), {{fmt::format("{}shot_seed0", shots), first},
                               {fmt::format("{}shot_seed1", shots), second},
                               {fmt::format("{}shot", shots), (first + second) / 2}});
      EXPECT_GT(first, 0.37) << "features tell classes apart; chance is 1 / 3";
      EXPECT_LT(first, 0.99) << "no accuracy is perfect, or errors would not show";
    }
    EXPECT_EQ(result.values, want);
    EXPECT_EQ(result.examples, 223);
    EXPECT_EQ(result.counted, "images");
  }
}

TEST(Fewshot, EveryBatchAndNumberOfRanksGivesTheSameBits) {
  for (int64_t train : {1, 2, 3, 5, 7, 40})
    for (int64_t test : {1, 3, 40}) {
      const std::string keys = "shots = [1, 10]\nl2_reg = [1024, 3]";
      const Values want =
          evaluate({.train = train, .test = test, .batch = 1, .keys = keys})[0].values;
      EXPECT_EQ(want.size(), 14u);
      for (int64_t batch : {1, 4, 32})
        for (int ranks : {1, 2, 3, 4})
          for (const eval::Result& r : evaluate(
                   {.train = train, .test = test, .batch = batch, .ranks = ranks, .keys = keys}))
            EXPECT_EQ(r.values, want) << train << " and " << test << " images, batch " << batch
                                      << ", " << ranks << " ranks";
    }
}

TEST(Fewshot, ValuesHaveTheDeclaredNames) {
  for (const char* keys : {"", "shots = [3]\nseeds = 1", "l2_reg = [1, 2]\nseeds = 2"}) {
    std::vector<std::string> names, declared;
    const std::vector<eval::Result> results = evaluate({.keys = keys});
    for (const auto& [name, value] : results[0].values) names.push_back(name);
    for (const eval::Metric& m : eval::metrics_of(options(keys))) {
      declared.push_back(m.name);
      EXPECT_FALSE(m.unit.empty() || m.doc.empty()) << m.name;
    }
    EXPECT_EQ(names, declared);
  }
}

TEST(Fewshot, ASweepReportsTheStrengthThatItTook) {
  const Images train{"few", 40}, test{"val", 223};
  const Values values =
      evaluate({.test = 223, .keys = "shots = [1, 10]\nseeds = 1\nl2_reg = [3, 1e9]"})[0].values;
  ASSERT_EQ(values.size(), 6u);
  for (size_t s : {size_t{0}, size_t{3}}) {
    const double l2 = values[s + 1].second;
    EXPECT_TRUE(l2 == 3 || l2 == 1e9) << l2;
    EXPECT_EQ(values[s].second, accuracy(train, test, s ? 10 : 1, 0, l2));
  }
  EXPECT_EQ(values[1].second, 3) << "one image of each class: none is held out";
}

TEST(Fewshot, AnInterruptedEvaluationHasNoValue) {
  // 40 images in batches of 6 on 2 ranks take 4 rounds, 12 probes on 2 ranks 6, 23 images 2.
  for (int64_t after : {0, 3, 4, 9, 10, 11})
    for (const eval::Result& r : evaluate({.ranks = 2, .interrupt_after = after})) {
      EXPECT_TRUE(r.interrupted) << after;
      EXPECT_TRUE(r.values.empty());
    }
  EXPECT_FALSE(evaluate({.ranks = 2, .interrupt_after = 12})[0].interrupted);
}

TEST(Fewshot, FeaturesThatAreNotFiniteGiveNoAccuracy) {
  for (const eval::Result& r : evaluate({.ranks = 2, .broken = "val"}))
    for (const auto& [name, value] : r.values) EXPECT_TRUE(std::isnan(value)) << name;
}

TEST(Fewshot, RefusesSetsThatCannotServe) {
  const std::unique_ptr<eval::Evaluator> evaluator = eval::make_evaluator(options(""));
  EXPECT_THROW(evaluator->check(data_set({"val", 0})), base::Error);
  evaluator->check(data_set({"val", 1}));
  const Images images{"few", 3};
  for (int32_t label : {-1, 1'000'000}) {
    const data::Dataset set = data_set(images, label);
    MadeUpFeatures pass(images, images);
    try {
      rig::ThreadRanks(1).run_all([&](comm::Comm& world) {
        device::Ledger ledger;
        evaluator->run({.world = world,
                        .dataset = set,
                        .loader = {},
                        .batch = 4,
                        .pass = &pass,
                        .forward = rig::runs_of(pass),
                        .further = {{"train_data", &set}},
                        .ledger = &ledger});
      });
      ADD_FAILURE() << "label " << label << " was accepted";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::data);
      for (const std::string& part :
           {std::string("[data.few]"), fmt::format("label {}", label), std::string("image:0")})
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
}

TEST(Fewshot, RefusesKeysThatMeanNothing) {
  for (const auto& [keys, part] : {std::pair{"shots = []", "names no number"},
                                   {"shots = [5, 5]", "twice"},
                                   {"l2_reg = [1.0, 1.0]", "twice"},
                                   {"l2_reg = [0]", "l2_reg"},
                                   {"seeds = 0", "seeds"}}) {
    rig::Root root;
    config::Deck deck(
        config::DeckSource{"deck.toml",
                           fmt::format("[eval]\nkind = \"fewshot\"\ndata = \"val\"\ntrain_data = "
                                       "\"few\"\nevery_steps = 1\n{}\n",
                                       keys),
                           {}},
        root);
    ASSERT_FALSE(deck.problems().lines.empty()) << keys;
    EXPECT_NE(fmt::format("{}", fmt::join(deck.problems().lines, " ")).find(part),
              std::string::npos);
  }
}

TEST(Fewshot, NamesBothOfItsSets) {
  EXPECT_EQ(eval::data_sets_of(options("")),
            (std::map<std::string, std::string>{{"data", "val"}, {"train_data", "few"}}));
  EXPECT_EQ(eval::data_sets_of(rig::options("perplexity")),
            (std::map<std::string, std::string>{{"data", "val"}}));
}

}  // namespace few
