// SPDX-License-Identifier: Apache-2.0
// Checks the loss of clusters (ssl.md 3.8) against k-means and cross-entropy in double
// (embedding_loss_rig.hpp).
#include <set>

#include "embedding_loss_rig.hpp"

namespace {
namespace cluster_loss_test {

using namespace embedding_rig;

constexpr int64_t kWidth = 4, kSamples = 20, kViews = 3;
const models::DeepclusterLossOptions kOptions{.samples = kSamples,
                                              .kmeans_iterations = 3,
                                              .clusters = {5, 3, 2},
                                              .memory_views = {0, 2},
                                              .temperature = 0.5};

std::vector<Doubles> rows_of(const Doubles& all) {
  std::vector<Doubles> out;
  for (size_t r = 0; r < all.size() / kWidth; ++r) out.push_back(row_of(all, int64_t(r), kWidth));
  return out;
}

size_t nearest(const Doubles& row, const std::vector<Doubles>& centroids) {
  size_t best = 0;
  for (size_t k = 1; k < centroids.size(); ++k)
    if (dot(row, centroids[k]) > dot(row, centroids[best])) best = k;
  return best;
}

// Spherical k-means; a cluster without members keeps its centroid.
std::vector<Doubles> clustered(const std::vector<Doubles>& memory, size_t head) {
  std::vector<Doubles> centroids;
  const base::Stream draws = base::Stream().sub(base::stream_id("centroids")).sub(head);
  for (const int32_t r : models::rows_of_centroids(draws, kOptions.clusters[head], kSamples))
    centroids.push_back(unit(memory[size_t(r)]));
  for (int64_t i = 0; i < kOptions.kmeans_iterations; ++i) {
    std::vector<Doubles> sums(centroids.size(), Doubles(size_t(kWidth), 0.0));
    std::vector<int> members(centroids.size(), 0);
    for (const Doubles& row : memory) {
      const size_t k = nearest(row, centroids);
      for (size_t c = 0; c < row.size(); ++c) sums[k][c] += row[c];
      ++members[k];
    }
    for (size_t k = 0; k < centroids.size(); ++k)
      if (members[k] > 0) centroids[k] = unit(sums[k]);
  }
  return centroids;
}

// Memory 0 has four directions, so one of five clusters has no member.
void set_states(Bench& bench) {
  for (const int64_t a : {0, 1}) {
    const View memory = bench.weight(fmt::format("loss/memory{}", a));
    const std::vector<Doubles> rows =
        rows_of(numbers(kSamples * kWidth, fmt::format("memory{}", a)));
    for (int64_t r = 0; r < kSamples; ++r) {
      const Doubles row = unit(rows[size_t(a == 0 ? r % 4 : r)]);
      for (int64_t c = 0; c < kWidth; ++c) memory.f32()[r * kWidth + c] = float(row[size_t(c)]);
    }
  }
  for (const size_t h : {0, 1, 2}) {
    const View centroids = bench.weight(fmt::format("loss/centroids{}", h));
    const std::vector<Doubles> rows = rows_of(numbers(centroids.count, fmt::format("first{}", h)));
    for (size_t k = 0; k < rows.size(); ++k) {
      const Doubles row = unit(rows[k]);
      for (size_t c = 0; c < row.size(); ++c) centroids.f32()[k * kWidth + c] = float(row[c]);
    }
  }
}

std::vector<Doubles> centroids_of(Bench& bench, size_t head, int64_t step) {
  if (step == 4)
    return clustered(rows_of(doubles(bench.weight(fmt::format("loss/memory{}", head % 2)))), head);
  return rows_of(doubles(bench.weight(fmt::format("loss/centroids{}", head))));
}

Subject subject(int64_t step) {
  Tensors in{.views = kViews,
             .widths = {kWidth},
             .outputs = {numbers(kExamples * kViews * kWidth, "embeddings")}};
  for (int64_t b = 0; b < kExamples; ++b) in.index.push_back(int32_t((7 * b + 3) % kSamples));
  Subject s{fmt::format("step {}", step),
            [](models::ParameterList& list) {
              return models::make_deepcluster_loss(kOptions, kWidth, list);
            },
            in,
            [step](const Tensors& t, Bench& bench) {
              double loss = 0;
              for (size_t h = 0; h < kOptions.clusters.size(); ++h) {
                const std::vector<Doubles> centroids = centroids_of(bench, h, step),
                                           memory = rows_of(doubles(
                                               bench.weight(fmt::format("loss/memory{}", h % 2))));
                for (int64_t r = 0; r < kExamples * kViews; ++r) {
                  const Doubles u = unit(row_of(t.outputs[0], r, kWidth));
                  Doubles scores;
                  for (const Doubles& c : centroids) scores.push_back(dot(u, c));
                  const size_t k = nearest(memory[size_t(t.index[size_t(r / kViews)])], centroids);
                  loss -= log_softmax(scores, kOptions.temperature)[k];
                }
              }
              return loss / double(kExamples * kViews) / double(kOptions.clusters.size());
            }};
  s.step = step;
  s.set = set_states;
  return s;
}

// Twenty samples in batches of eight: step 4 is the first of the second epoch.
TEST(ClusterLoss, LossAndGradientsOfEachStep) {
  check_loss(subject(4));
  check_loss(subject(5));
}

TEST(ClusterLoss, StatesAreMemoryAndCentroids) {
  const Subject s = subject(4);
  std::unique_ptr<Bench> bench;
  const Outcome got = run_loss(s, {}, &bench);
  for (size_t a : {0, 1})
    for (int64_t b = 0; b < kExamples; ++b) {
      const Doubles want =
          unit(row_of(s.in.outputs[0], b * kViews + kOptions.memory_views[a], kWidth));
      for (int64_t c = 0; c < kWidth; ++c)
        EXPECT_NEAR(double(got.states[a][size_t(s.in.index[size_t(b)] * kWidth + c)]),
                    want[size_t(c)], 1e-6);
    }
  for (size_t h : {0, 1, 2}) {
    const std::vector<Doubles> want = centroids_of(*bench, h, 4);
    for (size_t k = 0; k < want.size(); ++k)
      for (size_t c = 0; c < want[k].size(); ++c)
        EXPECT_NEAR(double(got.states[2 + h][k * kWidth + c]), want[k][c], 1e-6) << h << " " << k;
  }
}

TEST(ClusterLoss, FirstEpochFillsTheMemoryAlone) {
  const Outcome got = run_loss(subject(3), {2, 1});
  for (float v : got.losses) EXPECT_EQ(v, 0);
  for (float v : got.gradients[0]) EXPECT_EQ(v, 0);
  EXPECT_NE(got.states[0], run_loss(subject(4), {2, 1}).states[2]);
  const std::vector<int32_t> rows = models::rows_of_centroids({}, kSamples, kSamples);
  EXPECT_EQ(std::set<int32_t>(rows.begin(), rows.end()).size(), size_t(kSamples));
}

}  // namespace cluster_loss_test
}  // namespace
