// SPDX-License-Identifier: Apache-2.0
// Tests sums over the examples of a pass, against the plainest loops.
#include "kernels/example_sums.hpp"

#include "rig.hpp"

COVERS(example_sums);

namespace {

using namespace kernels;
using namespace rig;

TEST(ExampleSums, AreThoseOfPlainLoops) {
  for (auto [batch, columns, slices] :
       {std::array<int64_t, 3>{1, 1, 1}, {12, 3, 4}, {300, 2, 1}, {520, 5, 40}}) {
    std::vector<float> values = normals(batch * columns, "values");
    std::vector<double> sums(size_t(slices * columns), -1.0), want(sums.size());
    TestQueue queue(2);
    run(ExampleSums{{sums.data(), DType::f64, slices * columns},
                    device::view(values.data(), batch * columns),
                    batch,
                    columns,
                    slices},
        queue);
    for (int64_t i = 0; i < batch; ++i)
      for (int64_t c = 0; c < columns; ++c)
        want[size_t(i / (batch / slices) * columns + c)] += double(values[size_t(c * batch + i)]);
    EXPECT_EQ(sums, want) << batch << " x " << columns << " in " << slices;
  }
}

TEST(ExampleSums, RefusesWrongShapes) {
  Queue queue(device::Kind::plan);
  std::vector<float> values(24);
  std::vector<double> sums(6);
  auto of = [&](auto change) {
    ExampleSums a{{sums.data(), DType::f64, 6}, device::view(values.data(), 24), 12, 2, 3};
    change(a);
    kernels::run(a, queue);
  };
  of([](ExampleSums&) {});
  EXPECT_ERROR(of([](ExampleSums& a) { a.slices = 5; }), "example_sums",
               "12 examples cannot be divided into 5 slices");
  EXPECT_ERROR(of([](ExampleSums& a) { a.sums.count = 5; }), "example_sums", "sums");
  EXPECT_ERROR(of([](ExampleSums& a) { a.values.count = 23; }), "example_sums", "values");
}

}  // namespace
