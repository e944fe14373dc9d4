// SPDX-License-Identifier: Apache-2.0
// Tests the counts of known targets and the weights that follow from them.
#include "kernels/target_counts.hpp"

#include "rig.hpp"

COVERS(target_counts);
COVERS(count_weights);

namespace {

using namespace kernels;
using namespace rig;

TEST(TargetCounts, CountWhatIsKnownInEachSlice) {
  for (auto [rows, columns, slices] :
       {std::array<int64_t, 3>{6, 5, 3}, {8, 1, 2}, {4, 300, 1}, {0, 3, 1}}) {
    TestQueue queue(2);
    const std::vector<int32_t> labels = integers(rows * columns, -1, 2, "labels");
    const std::vector<float> targets(labels.begin(), labels.end());
    std::vector<double> of_labels(size_t(slices * columns), -7), of_targets = of_labels;
    const View counts{of_labels.data(), device::DType::f64, slices * columns};
    TargetCounts a{counts, device::view(labels.data(), rows * columns), rows, columns, slices};
    run(a, queue);
    a.counts.data = of_targets.data();
    a.values = device::view(targets.data(), rows * columns);
    run(a, queue);
    for (int64_t j = 0; j < slices; ++j)
      for (int64_t c = 0; c < columns; ++c) {
        double known = 0;
        for (int64_t r = j * rows / slices; r < (j + 1) * rows / slices; ++r)
          known += labels[size_t(r * columns + c)] != -1;
        EXPECT_EQ(of_labels[size_t(j * columns + c)], known) << j << " " << c;
        EXPECT_EQ(of_targets[size_t(j * columns + c)], known) << j << " " << c;
      }
  }
}

TEST(TargetCounts, WeightsMakeMeansOfSums) {
  TestQueue queue;
  std::vector<double> counts{0, 1, 4, 12};
  Tensor weights(4), factor(std::vector<float>{1024});
  CountWeights a{.weights = weights,
                 .counts = {counts.data(), device::DType::f64, 4},
                 .columns = 4,
                 .examples = 12};
  run(a, queue);
  EXPECT_EQ(weights.values(), (std::vector<float>{12, 12, 3, 1})) << "no image counts as one";
  a.factor = factor;
  run(a, queue);
  EXPECT_EQ(weights.values(), (std::vector<float>{12288, 12288, 3072, 1024}));
}

TEST(TargetCounts, CostAndChecks) {
  std::vector<double> counts(8);
  Tensor targets(12);
  TargetCounts a{{counts.data(), device::DType::f64, 8}, targets, 3, 4, 2};
  EXPECT_ERROR(check(a), "target_counts", "3 rows cannot be divided into 2 slices");
  a.slices = 1;
  EXPECT_ERROR(check(a), "counts has 8 elements", "[1, 4]");
  a.counts.count = 4;
  check(a);
  EXPECT_EQ(cost(a).bytes, 48 + 32);
}

}  // namespace
