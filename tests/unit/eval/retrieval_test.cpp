// SPDX-License-Identifier: Apache-2.0
// Tests retrieval with a made-up likelihood of captions against ranks by their definition, for
// every set size and number of ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "cut_rig.hpp"
#include "pair_rig.hpp"

namespace {

// Returns the likelihood of caption c for image i. Many pairs are equally likely, and a caption's
// own image is often among the best.
double caption_likelihood(int64_t i, int64_t c) {
  return -1 - double((i * i + 3 * c * c + 5 * i * c) % 13) - double(c % 4) + (i == c ? 4 : 0);
}
double of_ids(int64_t image, const int32_t* ids, int64_t) {
  return caption_likelihood(image, ids[0] - 1);
}

// Returns the shares by the definition: i2t and then t2i, for each k.
std::vector<double> expected_recalls(int64_t n, const std::vector<int64_t>& ks, bool prior) {
  auto score = [&](int64_t i, int64_t c) {
    double mean = 0;
    for (int64_t j = 0; prior && j < n; ++j) mean += caption_likelihood(j, c);
    return caption_likelihood(i, c) - mean / double(n);
  };
  std::vector<double> out;
  for (bool to_text : {true, false})
    for (int64_t k : ks) {
      double hits = 0;
      for (int64_t own = 0; own < n; ++own) {
        int64_t before = 0;
        for (int64_t other = 0; other < n; ++other) {
          const double a = to_text ? score(own, other) : score(other, own), b = score(own, own);
          before += a > b || (a == b && other < own);
        }
        hits += before < k;
      }
      out.push_back(hits / double(n));
    }
  return out;
}

TEST(Retrieval, IsExactForEverySetSizeBatchAndNumberOfRanks) {
  const std::vector<int64_t> ks = {1, 5, 10};
  for (bool prior : {false, true}) {
    const eval::EvalOptions options =
        rig::options("retrieval", fmt::format("subtract_prior = {}", prior));
    for (int64_t examples : {1, 2, 3, 5, 7, 40}) {
      const data::Dataset set = rig::numbers("labels", examples);
      eval::make_evaluator(options)->check(set);
      const std::vector<double> want = expected_recalls(examples, ks, prior);
      for (int64_t batch : {1, 4, 32})
        for (int size : {1, 2, 3})
          for (const eval::Result& r : rig::evaluate_pairs(options, set, batch, size, of_ids)) {
            std::vector<double> got;
            for (const auto& [name, value] : r.values) got.push_back(value);
            EXPECT_EQ(got, want) << examples << " examples, batch " << batch << ", " << size
                                 << " ranks, prior " << prior;
            EXPECT_EQ(r.examples, examples);
          }
    }
  }
  const std::vector<double> forty = expected_recalls(40, ks, false);
  EXPECT_NE(forty, expected_recalls(40, ks, true));
  EXPECT_GT(forty[1], forty[0]);
  EXPECT_NE(std::vector<double>(forty.begin(), forty.begin() + 3),
            std::vector<double>(forty.begin() + 3, forty.end()));
}

// Sets of equal captions and images: only the order decides, and the first comes first.
TEST(Retrieval, CutsChangeNothing) {
  for (bool prior : {false, true})
    rig::expect_cuts_change_nothing(
        rig::options("retrieval", fmt::format("subtract_prior = {}", prior)),
        rig::numbers("labels", 29), [] { return std::make_unique<rig::MadeUpPairs>(of_ids); });
}

TEST(Retrieval, AmongEqualPairsTheFirstWins) {
  auto equal = [](int64_t, const int32_t*, int64_t) { return -2.0; };
  const auto results = rig::evaluate_pairs(rig::options("retrieval", "k = [1, 3]"),
                                           rig::numbers("labels", 5), 2, 2, equal);
  const std::vector<std::pair<std::string, double>> want = {
      {"i2t_r1", 0.2}, {"i2t_r3", 0.6}, {"t2i_r1", 0.2}, {"t2i_r3", 0.6}};
  for (const eval::Result& r : results) EXPECT_EQ(r.values, want);
}

// Caption 2 is as likely for image 0 as for its own image 2. So image 0 comes first for caption 2,
// and caption 0 for image 0.
TEST(Retrieval, OfTwoEqualPairsTheFirstWins) {
  auto likelihood = [](int64_t image, const int32_t* ids, int64_t) {
    const int64_t caption = ids[0] - 1;
    return image == caption || (image == 0 && caption == 2) ? -2.0 : -9.0;
  };
  for (int ranks : {1, 2})
    for (const eval::Result& r :
         rig::evaluate_pairs(rig::options("retrieval", "k = [1, 2]"), rig::numbers("labels", 3), 1,
                             ranks, likelihood)) {
      const std::vector<std::pair<std::string, double>> want = {
          {"i2t_r1", 1}, {"i2t_r2", 1}, {"t2i_r1", 2 / 3.0}, {"t2i_r2", 1}};
      EXPECT_EQ(r.values, want);
    }
}

// A caption of one token and its likelihood -3 beats one of two tokens with -5 only if lengths do
// not count.
TEST(Retrieval, LengthsCountIfAsked) {
  class Lengths : public data::Source {
   public:
    int64_t size() const override { return 2; }
    std::string key(int64_t) const override { return "lengths"; }
    std::string summary() const override { return ""; }
    data::Sample read(int64_t index) const override {
      data::Array image(device::DType::f32, {1}), labels(device::DType::i32, {2});
      image.f32()[0] = float(index + 1);
      labels.i32()[0] = int32_t(index + 1);
      labels.i32()[1] = index == 1 ? 9 : 0;
      data::Sample sample;
      sample["image"] = std::move(image);
      sample["labels"] = std::move(labels);
      return sample;
    }
  };
  const data::Spec spec = {{"image", data::FieldSpec::array(device::DType::f32, {1})},
                           {"labels", data::FieldSpec::array(device::DType::i32, {2})}};
  const data::Dataset set("val", std::make_unique<Lengths>(), data::Pipeline("", spec, {}));
  auto likelihood = [](int64_t, const int32_t* ids, int64_t) { return ids[1] ? -5.0 : -3.0; };
  for (bool lengths : {false, true}) {
    const auto results = rig::evaluate_pairs(
        rig::options("retrieval", fmt::format("k = [1]\nnormalize_by_length = {}", lengths)), set,
        1, 1, likelihood);
    // The best caption is the same for both images: the first one, or by length the second one.
    EXPECT_EQ(results[0].values[0].second, 0.5);
    const auto second = rig::evaluate_pairs(
        rig::options("retrieval", fmt::format("k = [1]\nnormalize_by_length = {}", lengths)), set,
        2, 1, [&](int64_t image, const int32_t* ids, int64_t length) {
          return image == 0 && !ids[1] ? -100.0 : likelihood(image, ids, length);
        });
    // Image 0 then prefers caption 1, and only image 1 can find its own, which lengths decide.
    EXPECT_EQ(second[0].values[0].second, lengths ? 0.5 : 0.0);
  }
}

TEST(Retrieval, ABrokenModelHasNoValue) {
  auto broken = [](int64_t image, const int32_t* ids, int64_t) {
    return image == 3 && ids[0] == 2 ? NAN : -1.0;
  };
  for (const eval::Result& r :
       rig::evaluate_pairs(rig::options("retrieval"), rig::numbers("labels", 5), 2, 2, broken))
    for (const auto& [name, value] : r.values) EXPECT_TRUE(std::isnan(value)) << name;
}

TEST(Retrieval, ValuesHaveTheDeclaredNames) {
  const eval::EvalOptions options = rig::options("retrieval", "k = [2, 1]");
  std::vector<std::string> names, declared;
  const auto results = rig::evaluate_pairs(options, rig::numbers("labels", 5), 2, 1, of_ids);
  for (const auto& [name, value] : results[0].values) names.push_back(name);
  for (const eval::Metric& m : eval::metrics_of(options)) declared.push_back(m.name);
  EXPECT_EQ(names, declared);
}

TEST(Retrieval, AnInterruptedEvaluationHasNoValue) {
  for (int64_t calls : {0, 1, 3})
    for (const eval::Result& r : rig::evaluate_pairs(
             rig::options("retrieval"), rig::numbers("labels", 40), 4, 2, of_ids, calls)) {
      EXPECT_TRUE(r.interrupted);
      EXPECT_TRUE(r.values.empty());
    }
}

}  // namespace
