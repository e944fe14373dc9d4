// SPDX-License-Identifier: Apache-2.0
// Tests noise on weights while passes run.
#include "optim/noise.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "rig.hpp"

namespace {

// Weights of one rank, in two units.
struct NoisyWeights {
  NoisyWeights() {
    weights.initialise(3);
    weights.publish();
  }
  std::vector<float> values(const char* path) const {
    const device::View v = weights.weight(layout.find(path));
    return {v.f32(), v.f32() + v.count};
  }

  std::unique_ptr<comm::Comm> ranks = comm::make_plan_comm(1);
  comm::Mesh mesh = comm::make_plan_mesh({1, 1}, *ranks);
  device::Queue queue{device::Kind::cpu, 2};
  device::Ledger ledger;
  shard::Layout layout{{rig::parameter("a/kernel", {70, 130}), rig::parameter("a/bias", {130}, 1)},
                       {"a", "b"},
                       {},
                       1,
                       1};
  shard::Fabric fabric{layout, mesh, queue, ledger};
  shard::WeightStore weights{fabric, 0};
};

TEST(Noise, IsThereForPassesAlone) {
  NoisyWeights w;
  optim::Noise noise(w.fabric, {.match = ".*kernel", .std = 0.5}, 7, w.weights);
  const std::vector<float> kernel = w.values("a/kernel"), bias = w.values("a/bias");
  std::vector<float> first;
  for (int64_t step : {1, 2, 1}) {
    noise.begin(step);
    const std::vector<float> seen = w.values("a/kernel");
    EXPECT_EQ(w.values("a/bias"), bias);
    double square = 0, sum = 0;
    for (size_t i = 0; i < seen.size(); ++i) {
      sum += double(seen[i]) - double(kernel[i]);
      square += std::pow(double(seen[i]) - double(kernel[i]), 2);
    }
    EXPECT_NEAR(sum / double(seen.size()), 0, 0.02);
    EXPECT_NEAR(square / double(seen.size()), 0.25, 0.02);
    if (first.empty()) first = seen;
    EXPECT_EQ(seen == first, step == 1) << "the noise of a step is its own";
    noise.end();
    EXPECT_EQ(w.values("a/kernel"), kernel) << "to the last bit";
  }
  EXPECT_THROW(optim::Noise(w.fabric, {.match = "b/.*", .std = 1}, 7, w.weights), base::Error);
}

}  // namespace
