// SPDX-License-Identifier: Apache-2.0
// Tests RankMe, LiDAR and the eigenvalues behind them with made features. NumPy computed the values
// (record_feature_ranks.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "eval/features/rank_method.hpp"
#include "eval/fits/symmetric.hpp"
#include "feature_rig.hpp"
#include "tests/unit/recorded.hpp"

namespace feature_ranks {

struct Made {
  int64_t images = 0, views = 0, features = 0;
  double delta = 0, rankme = 0, lidar = 0;
  std::vector<double> x512, eigenvalues;  // x512: [views, images, features], times 512
  double at(int64_t row, int64_t f) const { return x512[size_t(row * features + f)] / 512; }
};

const std::vector<Made>& made_sets() {
  static const std::vector<Made> all = [] {
    std::ifstream file(tests::source_file("tests/data/feature_ranks.jsonl"));
    std::vector<Made> out;
    for (std::string line; std::getline(file, line);) {
      const auto j = nlohmann::json::parse(line);
      out.push_back({j["images"], j["views"], j["features"], j["delta"], j["rankme"], j["lidar"],
                     j["x512"], j["eigenvalues"]});
    }
    return out;
  }();
  return all;
}

// Gives the image at each position its made features: pass v over the set has view v.
class MadePass : public models::EmbedPass {
 public:
  explicit MadePass(const Made& made) : made_(made), taps_{{"made", {made.features}, ""}} {}
  std::string name() const override { return "embed(made)"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  const std::vector<models::Tap>& taps() const override { return taps_; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, const std::vector<float*>& features) override {
    for (int64_t i = 0; i < batch_.examples; ++i) {
      const int64_t position = batch_.first_position + i;
      const float image = batch_.features.at("image").f32()[i];
      const bool padding = image == 0;
      EXPECT_TRUE(padding || image == float(position % made_.images + 1));
      for (int64_t f = 0; f < made_.features; ++f)
        features.at(0)[i * made_.features + f] = padding ? NAN : float(made_.at(position, f));
    }
  }

 private:
  const Made& made_;
  std::vector<models::Tap> taps_;
  mutable models::HostBatch batch_;
};

double value_of(const Made& made, const std::string& kind, const std::string& keys, int ranks = 1,
                int64_t batch = 4, int threads = 1) {
  const data::Dataset set = rig::numbers("label", made.images);
  const auto evaluator = eval::make_evaluator(rig::options(kind, keys));
  std::vector<double> out(size_t(ranks), 0.0);
  rig::ThreadRanks(ranks, 2).run_all([&](comm::Comm& world) {
    MadePass pass(made);
    device::Ledger ledger;
    const eval::Result result = evaluator->run({.world = world,
                                                .dataset = set,
                                                .loader = {},
                                                .batch = batch,
                                                .pass = &pass,
                                                .forward = rig::runs_of(pass),
                                                .threads = threads,
                                                .ledger = &ledger});
    EXPECT_EQ(result.values.size(), 1u);
    EXPECT_EQ(result.values.at(0).first, kind);
    EXPECT_EQ(result.examples, made.images);
    out[size_t(world.rank())] = result.values.at(0).second;
  });
  for (double value : out) EXPECT_EQ(value, out[0]) << kind << " on " << ranks << " ranks";
  return out[0];
}

std::string lidar_keys(const Made& made) {
  return fmt::format("views = {}\ndelta = {:.6f}", made.views, made.delta);
}

// Singular values that are 0 are known to some 1e-8 of the largest one.
TEST(FeatureRanks, AreThoseOfNumPy) {
  ASSERT_EQ(made_sets().size(), 8u);
  for (const Made& made : made_sets()) {
    const bool full = made.eigenvalues[0] > 1e-3;
    EXPECT_NEAR(value_of(made, "rankme", ""), made.rankme, made.rankme * (full ? 1e-11 : 1e-5))
        << made.images << " images, " << made.features << " features";
    EXPECT_NEAR(value_of(made, "lidar", lidar_keys(made)), made.lidar, made.lidar * 1e-9)
        << made.images << " images, " << made.features << " features";
  }
}

TEST(FeatureRanks, EveryBatchThreadCountAndNumberOfRanksGivesTheSameBits) {
  for (const Made& made : made_sets())
    for (const std::string kind : {"rankme", "lidar"}) {
      const std::string keys = kind == "lidar" ? lidar_keys(made) : "";
      const double want = value_of(made, kind, keys);
      for (int ranks : {1, 2, 3, 4})
        for (int64_t batch : {1, 7})
          EXPECT_EQ(value_of(made, kind, keys, ranks, batch, 1 + ranks % 3), want)
              << kind << " of " << made.images << " images on " << ranks << " ranks";
    }
}

TEST(FeatureRanks, EqualViewsAreRefused) {
  const Made made{3, 2, 2, 1e-4, 0, 0, {1, 2, 3, 4, 7, 6, 1, 2, 3, 4, 7, 6}, {}};
  try {
    value_of(made, "lidar", lidar_keys(made), 2);
    ADD_FAILURE() << "equal views were accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::data);
    EXPECT_TRUE(e.agreed());
    EXPECT_TRUE(std::string_view(e.what()).starts_with(
        "[data.val]: the 2 views of each image have equal features"))
        << e.what();
  }
}

// Features that have collapsed to one vector use one dimension, and do not distinguish images.
TEST(FeatureRanks, CollapsedFeatures) {
  Made made{3, 2, 2, 1e-4, 0, 0, std::vector<double>(12, 5.0), {}};
  EXPECT_NEAR(value_of(made, "rankme", ""), 1, 1e-5);
  EXPECT_EQ(value_of(made, "lidar", lidar_keys(made)), 0);
  made.x512.assign(12, 0.0);
  EXPECT_EQ(value_of(made, "rankme", ""), 0);
}

TEST(FeatureRanks, LidarNeedsTwoImages) {
  const auto evaluator = eval::make_evaluator(rig::options("lidar"));
  evaluator->check(rig::numbers("label", 2));
  EXPECT_THROW(evaluator->check(rig::numbers("label", 1)), base::Error);
  EXPECT_THROW(evaluator->check(rig::numbers("label", 0)), base::Error);
  eval::make_evaluator(rig::options("rankme"))->check(rig::numbers("label", 1));
  EXPECT_EQ(eval::data_sets_of(rig::options("lidar")),
            (std::map<std::string, std::string>{{"data", "val"}}));
}

TEST(EffectiveRank, OfEqualValuesIsTheirNumber) {
  for (size_t n : {1, 2, 10, 500})
    EXPECT_NEAR(eval::effective_rank(std::vector<double>(n, 3.0)), double(n), 1e-3 * double(n));
  EXPECT_EQ(eval::effective_rank(std::vector<double>(4, 0.0)), 0);
  const double p = 0.75 + 1e-7, q = 0.25 + 1e-7;
  EXPECT_DOUBLE_EQ(eval::effective_rank(std::vector<double>{1, 3}),
                   std::exp(-p * std::log(p) - q * std::log(q)));
}

TEST(SymmetricEigenvalues, AreThoseOfNumPy) {
  for (const Made& made : made_sets()) {
    const int64_t n = made.features;
    std::vector<double> matrix(size_t(n * n), 0.0);
    for (int64_t i = 0; i < made.images; ++i)
      for (int64_t a = 0; a < n; ++a)
        for (int64_t b = 0; b < n; ++b) matrix[size_t(a * n + b)] += made.at(i, a) * made.at(i, b);
    std::vector<double> again = matrix;
    const std::vector<double> got = eval::symmetric_eigenvalues(matrix, n, 1);
    EXPECT_EQ(got, eval::symmetric_eigenvalues(again, n, 3));
    ASSERT_EQ(got.size(), made.eigenvalues.size());
    for (size_t k = 0; k < got.size(); ++k)
      EXPECT_NEAR(got[k], made.eigenvalues[k], 1e-13 * made.eigenvalues.back()) << n << ": " << k;
  }
}

TEST(SymmetricEigenvalues, OfKnownMatrices) {
  auto eigenvalues = [](std::vector<double> a, int64_t n) {
    return eval::symmetric_eigenvalues(a, n, 1);
  };
  EXPECT_NEAR(eigenvalues({-3}, 1)[0], -3, 1e-14);
  EXPECT_EQ(eigenvalues(std::vector<double>(9, 0.0), 3), std::vector<double>(3, 0.0));
  const std::vector<std::pair<std::vector<double>, std::vector<double>>> known = {
      {{2, 1, 1, 2}, {1, 3}},
      {{5, 0, 0, 0, -1, 0, 0, 0, 2}, {-1, 2, 5}},
      {{1, 1, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 3}},
      {{0, 0, 1, 0, 0, 0, 1, 0, 0}, {-1, 0, 1}},
      {{0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0}, {-2, -1, 1, 2}}};
  for (const auto& [matrix, want] : known) {
    const std::vector<double> got = eigenvalues(matrix, int64_t(want.size()));
    for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 1e-14) << k;
  }
}

// An element far below the others still counts.
TEST(SymmetricEigenvalues, SeeSmallElements) {
  std::vector<double> a = {0, 1, 1e-9, 1, 0, 1, 1e-9, 1, 0};
  const std::vector<double> got = eval::symmetric_eigenvalues(a, 3, 1);
  EXPECT_NEAR(got[2], std::sqrt(2.0) + 5e-10, 1e-14);
}

}  // namespace feature_ranks
