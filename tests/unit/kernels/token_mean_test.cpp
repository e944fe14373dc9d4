// SPDX-License-Identifier: Apache-2.0
// Tests the mean over tokens and its gradient, of f32 and of narrow tokens, against plain loops in
// double.
#include "kernels/token_mean.hpp"

#include "kernels/bf16_value.hpp"
#include "rig.hpp"

COVERS(token_mean_forward);
COVERS(token_mean_backward);

namespace {

using namespace kernels;
using namespace rig;

TEST(TokenMean, IsTheMeanAndSpreadsItsGradient) {
  for (auto [batch, rows, width] :
       {std::array<int64_t, 3>{1, 1, 1}, {3, 17, 20}, {2, 196, 48}, {5, 3, 7}, {0, 2, 3}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", batch, rows, width));
    TestQueue queue(2);
    const std::vector<float> values = normals(batch * rows * width, "x", 1, 0.5);
    std::vector<uint16_t> narrow;
    for (float v : values) narrow.push_back(loops::round_to_bf16(v).bits);
    Tensor x(values, 1), y(batch * width), of_narrow(batch * width),
        dy(normals(batch * width, "dy")), dx(batch * rows * width, 1);
    run(TokenMeanForward{y, x, batch, rows, width}, queue);
    run(TokenMeanForward{of_narrow,
                         {narrow.data(), device::DType::bf16, batch * rows * width},
                         batch,
                         rows,
                         width},
        queue);
    run(TokenMeanBackward{dx, dy, batch, rows, width}, queue);
    std::vector<double> want(size_t(batch * width)), want_narrow(want.size()), want_dx;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < width; ++j) {
          const size_t from = size_t((b * rows + r) * width + j), to = size_t(b * width + j);
          want[to] += double(values[from]) / double(rows);
          want_narrow[to] += double(loops::to_float(loops::Bf16{narrow[from]})) / double(rows);
          want_dx.push_back(double(dy[int64_t(to)]) / double(rows));
        }
    expect_close(y.values(), want, 1e-6, "mean");
    expect_close(of_narrow.values(), want_narrow, 1e-6, "mean of bf16");
    expect_close(dx.values(), want_dx, 1e-7, "gradient");
  }
}

TEST(TokenMean, CostAndChecks) {
  Tensor x(24), y(8);
  TokenMeanForward forward{y, x, 2, 3, 4};
  TokenMeanBackward backward{x, y, 2, 3, 4};
  check(forward);
  check(backward);
  EXPECT_EQ(cost(forward).bytes, 4 * 32);
  EXPECT_EQ(cost(backward).bytes, 4 * 32);
  forward.rows = backward.rows = 2;
  EXPECT_ERROR(check(forward), "token_mean_forward", "x has 24 elements");
  EXPECT_ERROR(check(backward), "token_mean_backward", "dx has 24 elements");
}

}  // namespace
