// SPDX-License-Identifier: Apache-2.0
// Tests what evaluators of features have in common, and fits against the conditions that define
// their solutions.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "eval/class_metrics.hpp"
#include "eval/fits/dense.hpp"
#include "eval/fits/linear_svm.hpp"
#include "eval/fits/logistic.hpp"
#include "feature_rig.hpp"

namespace fits {

using feature_rig::Images;
using feature_rig::kClasses;
using feature_rig::kWidth;
using feature_rig::Work;

const std::pair<const char*, const char*> kKinds[] = {
    {"knn", "k = [1, 3]"},
    {"lidar", "views = 3\ndelta = 1e-3"},
    {"rankme", ""},
    {"low_shot", "l2_reg = [0.025, 10]"},
    {"svm", "costs = [0.1, 1, 10]"},
    {"svm", "targets = \"targets\"\nnum_classes = 3"},
    {"svm_low_shot", "shots = [1, 4]\nseeds = 2\ncosts = [0.1, 10]"},
    {"svm_low_shot", "shots = [3]\ntargets = \"targets\"\nnum_classes = 3"}};

TEST(FeatureFits, EveryBatchThreadCountAndNumberOfRanksGivesTheSameBits) {
  for (const auto& [kind, keys] : kKinds)
    for (int64_t test : {2, 23}) {
      const auto want =
          feature_rig::evaluate(kind, {.test = test, .batch = 1, .keys = keys})[0].values;
      ASSERT_FALSE(want.empty());
      for (int64_t batch : {4, 32})
        for (int ranks : {1, 2, 3, 4})
          for (const eval::Result& r : feature_rig::evaluate(kind, {.test = test,
                                                                   .batch = batch,
                                                                   .ranks = ranks,
                                                                   .keys = keys,
                                                                   .threads = 1 + ranks % 2}))
            EXPECT_EQ(r.values, want)
                << kind << ", " << test << " images, batch " << batch << ", " << ranks << " ranks";
    }
}

// Four ranks on one, two, two and four nodes.
TEST(FeatureFits, RanksThatShareMemoryGetTheSameBits) {
  for (const auto& [kind, keys] : kKinds) {
    const auto want = feature_rig::evaluate(kind, {.keys = keys})[0].values;
    for (int of_node : {4, 3, 2, 1})
      for (const eval::Result& r :
           feature_rig::evaluate(kind, {.ranks = 4, .keys = keys, .of_node = of_node}))
        EXPECT_EQ(r.values, want) << kind << ", " << of_node << " ranks of a node";
  }
}

TEST(FeatureFits, ValuesHaveTheDeclaredNames) {
  for (const auto& [kind, keys] : kKinds) {
    std::vector<std::string> names, declared;
    const std::vector<eval::Result> results = feature_rig::evaluate(kind, {.keys = keys});
    for (const auto& [name, value] : results[0].values) names.push_back(name);
    for (const eval::Metric& m : eval::metrics_of(feature_rig::options(kind, keys))) {
      declared.push_back(m.name);
      EXPECT_FALSE(m.unit.empty() || m.doc.empty()) << m.name;
    }
    EXPECT_EQ(names, declared);
  }
}

// A fit to features that are not finite ends with an error that names the image. In a test set such
// features make the value NaN.
TEST(FeatureFits, FeaturesThatAreNotFiniteGiveNoValue) {
  auto refused = [](const std::string& kind, const std::string& keys, const std::string& broken,
                    const std::string& image) {
    try {
      feature_rig::evaluate(kind, {.ranks = 2, .keys = keys, .broken = broken});
      ADD_FAILURE() << kind << " fits to NaN";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::nonfinite);
      EXPECT_TRUE(e.agreed());
      const std::string says =
          fmt::format("[data.{}]: the features \"pre_logits\" of {} are not finite", broken, image);
      EXPECT_TRUE(std::string_view(e.what()).starts_with(says)) << kind << ": " << e.what();
    }
  };
  for (const auto& [kind, keys] : kKinds) {
    const bool one_set = feature_rig::reads_one_set(kind);
    if (!one_set) refused(kind, keys, "few", "image:39");
    if (one_set || std::string_view(kind) == "svm_low_shot") {  // all ranks get the test images
      refused(kind, keys, "val", "image:22");
      continue;
    }
    for (const eval::Result& r :
         feature_rig::evaluate(kind, {.ranks = 2, .keys = keys, .broken = "val"}))
      EXPECT_TRUE(std::isnan(r.values.at(0).second)) << kind;
  }
}

// 40 images in batches of 6 on 2 ranks take 4 rounds, 23 images take 2. Fits come in between.
// RankMe tests for a stop only in each round of the test set and in the fit.
TEST(FeatureFits, AnEvaluationThatWasCutGoesOn) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("fits_{}", getpid())).string();
  for (const auto& [kind, keys] : kKinds) {
    const auto want = feature_rig::evaluate(kind, {.keys = keys})[0].values;
    for (int64_t after : {0, 2, 4, 5}) {
      if (std::string_view(kind) == "rankme" && after > 2) continue;
      std::filesystem::remove_all(folder);
      for (const eval::Result& r : feature_rig::evaluate(
               kind, {.ranks = 2, .keys = keys, .interrupt_after = after, .journal = folder}))
        EXPECT_TRUE(r.interrupted && r.values.empty()) << kind << " after " << after;
      for (const eval::Result& r :
           feature_rig::evaluate(kind, {.batch = 5, .ranks = 3, .keys = keys, .journal = folder}))
        EXPECT_EQ(r.values, want) << kind << " after " << after;
    }
  }
  std::filesystem::remove_all(folder);
}

// Rows of made-up features, and their labels.
struct Made {
  std::vector<float> x;
  eval::LabelledRows rows;
  explicit Made(int64_t size) : rows{nullptr, kWidth, {}, kClasses} {
    const Images images{"few", size};
    for (int64_t i = 0; i < size; ++i) {
      rows.labels.push_back(images.label_of(i));
      for (int64_t f = 0; f < kWidth; ++f) x.push_back(images.feature_of(i, f));
    }
    rows.x = x.data();
  }
};

// With all images of each class, the machines equal those fitted to all images, for any seed.
TEST(FeatureFits, MachinesOfAllImagesNeedNoChoice) {
  const auto all = feature_rig::evaluate("svm", {.keys = "costs = [1]"})[0].values;
  const auto few =
      feature_rig::evaluate("svm_low_shot", {.keys = "costs = [1]\nshots = [40]\nseeds = 2"})[0]
          .values;
  ASSERT_EQ(few.size(), 4u);
  for (size_t i : {size_t{0}, size_t{1}, size_t{2}}) EXPECT_EQ(few[i].second, all[0].second) << i;
  EXPECT_EQ(few[3].second, 0);
  const auto one =
      feature_rig::evaluate("svm_low_shot", {.keys = "costs = [1]\nshots = [1]\nseeds = 4"})[0]
          .values;
  EXPECT_LT(one[1].second, one[0].second);
  EXPECT_LT(one[0].second, one[2].second);
  EXPECT_GT(one[3].second, 0);
}

TEST(FeatureFits, TheDeviationOfTwoChoicesIsHalfTheirDistance) {
  const auto two =
      feature_rig::evaluate("svm_low_shot", {.keys = "costs = [1]\nshots = [1]\nseeds = 2"})[0]
          .values;
  const double least = two[1].second, most = two[2].second;
  EXPECT_LT(least, most);
  EXPECT_NEAR(two[0].second, (least + most) / 2, 1e-12);
  EXPECT_NEAR(two[3].second, (most - least) / 2, 1e-12);
}

// Images whose target is not known are in neither the fit nor the test of the class.
TEST(FeatureFits, MachinesLeaveOutWhatIsNotKnown) {
  const Images train{"few", 40}, test{"val", 23};
  auto features = [](const Images& images) {
    std::vector<float> x;
    for (int64_t i = 0; i < images.size; ++i)
      for (int64_t f = 0; f < kWidth; ++f) x.push_back(images.feature_of(i, f));
    return eval::svm_rows(x.data(), images.size, kWidth);
  };
  const std::vector<double> x = features(train), of_test = features(test);
  double sum = 0;
  for (int32_t c = 0; c < kClasses; ++c) {
    std::vector<int64_t> rows;
    std::vector<char> shows;
    for (int64_t i = 0; i < train.size; ++i) {
      bool any = false;
      for (int32_t other = 0; other < kClasses; ++other) any |= train.target_of(i, other) > 0;
      if (any && train.target_of(i, c) >= 0) rows.push_back(i);
      shows.push_back(train.target_of(i, c) > 0);
    }
    ASSERT_LT(rows.size(), 40u);
    const std::vector<double> w = eval::fit_svm(x, kWidth + 1, rows, shows, 1);
    std::vector<double> scores;
    std::vector<float> targets;
    for (int64_t i = 0; i < test.size; ++i) {
      scores.push_back(eval::dot(of_test.data() + i * (kWidth + 1), w.data(), kWidth + 1));
      targets.push_back(test.target_of(i, c));
    }
    sum += eval::average_precision(scores.data(), targets.data(), test.size).value();
  }
  const std::string keys = "costs = [1]\nshots = [40]\nseeds = 1\ntargets = \"targets\"\n";
  EXPECT_NEAR(
      feature_rig::evaluate("svm_low_shot", {.keys = keys + "num_classes = 3"})[0].values[0].second,
      sum / kClasses, 1e-12);
}

// One image shows one class of three, and is the first of all that show it.
TEST(FeatureFits, ClassesThatNoImageShowsDoNotCount) {
  for (const char* kind : {"svm", "svm_low_shot"})
    EXPECT_EQ(feature_rig::evaluate(kind, {.test = 1, .keys = "costs = [1]"})[0].values[0].second,
              1)
        << kind;
}

TEST(FeatureFits, ASweepOfRegressionsReportsTheStrengthThatItTook) {
  auto regressions = [](const char* strengths) {
    return feature_rig::evaluate("low_shot",
                                 {.test = 223, .keys = fmt::format("l2_reg = [{}]", strengths)})[0]
        .values;
  };
  const double weak = regressions("0.025")[0].second, strong = regressions("1e6")[0].second;
  ASSERT_NE(weak, strong);
  for (const char* order : {"0.025, 1e6", "1e6, 0.025"}) {
    const auto both = regressions(order);
    EXPECT_EQ(both[0].second, std::max(weak, strong));
    EXPECT_EQ(both[1].second, weak > strong ? 0.025 : 1e6) << order;
  }
}

// The objective is strictly convex, so its minimiser is where the gradient is 0.
TEST(FeatureFits, MachinesHaveNoGradient) {
  const Made made(60);
  constexpr int64_t kRow = kWidth + 1;
  const std::vector<double> x = eval::svm_rows(made.x.data(), 60, kWidth);
  std::vector<int64_t> all(60);
  std::iota(all.begin(), all.end(), 0);
  for (double cost : {0.01, 1.0, 1000.0})
    for (int32_t c = 0; c < kClasses; ++c) {
      std::vector<char> shows;
      for (int32_t label : made.rows.labels) shows.push_back(label == c);
      const std::vector<double> w = eval::fit_svm(x, kRow, all, shows, cost);
      std::vector<long double> g(w.begin(), w.end());
      for (size_t i = 0; i < 60; ++i) {
        const long double t = shows[i] ? 1 : -1, weight = shows[i] ? 2 * cost : cost;
        long double score = 0;
        for (size_t f = 0; f < size_t(kRow); ++f) score += x[i * kRow + f] * w[f];
        for (size_t f = 0; f < size_t(kRow); ++f)
          g[f] -= 2 * weight * t * std::max(0.0L, 1 - t * score) * x[i * kRow + f];
      }
      for (long double v : g) EXPECT_LT(std::abs(v), 1e-7 * (1 + cost)) << cost << " class " << c;
      EXPECT_GT(eval::dot(w.data(), w.data(), kRow), 1e-4);
    }
}

TEST(FeatureFits, RegressionsHaveNoGradient) {
  const Made made(60);
  constexpr size_t kRow = kWidth + 1;
  for (double l2 : {0.025, 10.0}) {
    const eval::LogisticProbe probe = eval::fit_logistic(made.rows, l2, 1);
    ASSERT_EQ(probe.weights.size(), kRow * size_t(kClasses));
    std::vector<long double> g(probe.weights.size());
    for (size_t k = 0; k < g.size(); ++k)
      g[k] = k % kRow == kWidth ? 0 : l2 / 60 * (long double)(probe.weights[k]);
    for (size_t i = 0; i < 60; ++i) {
      long double x[kRow], scores[kClasses], sum = 0;
      for (size_t f = 0; f < kRow; ++f)
        x[f] = f == kWidth
                   ? 1.0L
                   : ((long double)(made.x[i * kWidth + f]) - probe.mean[f]) / probe.deviation[f];
      for (size_t c = 0; c < size_t(kClasses); ++c) {
        scores[c] = 0;
        for (size_t f = 0; f < kRow; ++f) scores[c] += probe.weights[c * kRow + f] * x[f];
        sum += scores[c] = std::exp(scores[c]);
      }
      for (size_t c = 0; c < size_t(kClasses); ++c)
        for (size_t f = 0; f < kRow; ++f)
          g[c * kRow + f] += (scores[c] / sum - (made.rows.labels[i] == int32_t(c) ? 1 : 0)) * x[f];
    }
    for (long double v : g) EXPECT_LT(std::abs(v), 1e-7) << l2;
  }
}

TEST(FeatureFits, AFeatureThatDoesNotVaryIsNotScaled) {
  const std::vector<float> x = {3, 1, 3, 2, 3, 4};
  const eval::LogisticProbe probe = eval::fit_logistic({x.data(), 2, {0, 0, 1}, 2}, 1, 1);
  EXPECT_EQ(probe.deviation[0], 1);
  std::vector<double> workspace;
  EXPECT_EQ(probe.predict(x.data(), workspace), 0);
  EXPECT_EQ(probe.predict(x.data() + 4, workspace), 1);
}

// The folds of scikit-learn's StratifiedKFold(3) for these rows.
TEST(FeatureFits, FoldsAreThoseOfScikitLearn) {
  EXPECT_EQ(eval::stratified_folds({0, 0, 1, 0, 1, 0, 1, 0, 0, 1}, 3),
            (std::vector<int64_t>{0, 0, 0, 1, 0, 1, 1, 2, 2, 2}));
  EXPECT_EQ(eval::stratified_folds({1, 0, 0, 0, 0}, 3), (std::vector<int64_t>{0, 0, 1, 1, 2}));
}

TEST(FeatureFits, AveragePrecisionOfEachRecallHasNoEnvelope) {
  const std::vector<double> falling = {4, 3, 2, 1};
  const std::vector<float> shows = {0, 1, 1, 0};
  EXPECT_DOUBLE_EQ(
      *eval::average_precision(falling.data(), shows.data(), 4, eval::Precision::of_each_recall),
      (1.0 / 2 + 2.0 / 3) / 2);
}

TEST(FeatureFits, RefuseKeysThatMeanNothing) {
  for (const auto& [kind, keys, part] : {std::tuple{"knn", "k = []", "names no number"},
                                         {"knn", "top = [1, 1]", "twice"},
                                         {"knn", "temperature = 0", "temperature"},
                                         {"svm", "costs = [0.1, 0.1]", "twice"},
                                         {"svm", "targets = \"tags\"", "num_classes"},
                                         {"svm", "num_classes = 3", "num_classes"},
                                         {"svm_low_shot", "shots = [2, 2]", "twice"},
                                         {"low_shot", "l2_reg = [0]", "l2_reg"},
                                         {"lidar", "views = 1", "views"},
                                         {"lidar", "delta = 0", "delta"},
                                         {"rankme", "", "train_data"}}) {
    rig::Root root;
    const config::Deck deck(
        config::DeckSource{"deck.toml",
                           fmt::format("[eval]\nkind = \"{}\"\ndata = \"val\"\ntrain_data = "
                                       "\"few\"\nevery_steps = 1\n{}\n",
                                       kind, keys),
                           {}},
        root);
    ASSERT_FALSE(deck.problems().lines.empty()) << keys;
    EXPECT_NE(fmt::format("{}", fmt::join(deck.problems().lines, " ")).find(part),
              std::string::npos)
        << kind << " " << keys;
  }
}

}  // namespace fits
