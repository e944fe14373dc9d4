// SPDX-License-Identifier: Apache-2.0
// Tests the activations of heads and the exchange of positions and channels, in all types.
#include "kernels/activation.hpp"

#include "kernels/transpose_positions.hpp"
#include "loss_rig.hpp"
#include "narrow_type.hpp"

COVERS(activation_forward);
COVERS(activation_backward);
COVERS(transpose_positions);

namespace {

using namespace kernels;
using namespace rig;

constexpr Activation kKinds[] = {Activation::relu, Activation::gelu_erf, Activation::gelu_quick};

double activated(double x, Activation kind) {
  if (kind == Activation::gelu_quick) return x / (1 + std::exp(-1.702 * x));
  return kind == Activation::relu ? std::max(x, 0.0) : x / 2 * std::erfc(-x / std::sqrt(2));
}

TEST(Activation, AgreesWithFormulaAndDerivative) {
  for (Activation kind : kKinds) {
    TestQueue queue(2);
    Tensor x(normals(1001, "x", 2), 1), y(1001, 1), dy(normals(1001, "dy"), 1), dx(1001, 1);
    run(ActivationForward{.y = y, .x = x, .kind = kind}, queue);
    run(ActivationBackward{.dx = dx, .dy = dy, .x = x, .kind = kind}, queue);
    Doubles want, slope;
    for (int64_t i = 0; i < 1001; ++i) {
      const double v = double(x[i]);
      want.push_back(activated(v, kind));
      slope.push_back(double(dy[i]) * (activated(v + 1e-5, kind) - activated(v - 1e-5, kind)) /
                      2e-5);
    }
    expect_close(y.values(), want, 1e-6, "forward");
    expect_close(dx.values(), slope, 2e-6, "backward");
  }
}

TEST(Activation, KeepsNotANumber) {
  TestQueue queue;
  for (Activation kind : kKinds) {
    Tensor x(std::vector<float>{NAN, -1, 1}), y(3);
    run(ActivationForward{.y = y, .x = x, .kind = kind}, queue);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_LE(y[1], 0);
  }
}

TEST(Activation, NarrowTypesRoundTheSameValues) {
  for_each_narrow_type([] {
    TestQueue queue(2);
    std::vector<uint16_t> x = narrowed(normals(300, "x")), y(300), dy = narrowed(normals(300, "d"));
    std::vector<uint16_t> dx(300);
    Doubles want, slope;
    for (Activation kind : kKinds) {
      run(ActivationForward{.y = narrow_view(y), .x = narrow_view(x), .kind = kind}, queue);
      run(
          ActivationBackward{
              .dx = narrow_view(dx), .dy = narrow_view(dy), .x = narrow_view(x), .kind = kind},
          queue);
      for (size_t i = 0; i < x.size(); ++i) {
        const double v = double(widened(x[i]));
        ASSERT_NEAR(double(widened(y[i])), activated(v, kind), 0.01 * (1 + std::abs(v)));
        const double s = (activated(v + 1e-5, kind) - activated(v - 1e-5, kind)) / 2e-5;
        ASSERT_NEAR(double(widened(dx[i])), double(widened(dy[i])) * s,
                    0.01 * (1 + std::abs(double(widened(dy[i])))));
      }
    }
  });
}

TEST(TransposePositions, MovesEveryElement) {
  for (auto [batch, positions, channels] :
       {std::array<int64_t, 3>{2, 4, 3}, {1, 1, 5}, {3, 7, 1}, {2, 36, 19}}) {
    TestQueue queue(2);
    const int64_t n = batch * positions * channels;
    Tensor x(normals(n, "x"), 1), y(n, 2), back(n);
    run(
        TransposePositions{
            .y = y, .x = x, .batch = batch, .positions = positions, .channels = channels},
        queue);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t p = 0; p < positions; ++p)
        for (int64_t c = 0; c < channels; ++c)
          ASSERT_EQ(y[(b * channels + c) * positions + p], x[(b * positions + p) * channels + c]);
    run(
        TransposePositions{
            .y = back, .x = y, .batch = batch, .positions = channels, .channels = positions},
        queue);
    EXPECT_TRUE(same_bits(back.values(), x.values()));
  }
}

TEST(TransposePositions, NarrowTypes) {
  for_each_narrow_type([] {
    TestQueue queue;
    std::vector<uint16_t> x = narrowed(normals(24, "x")), y(24);
    run(
        TransposePositions{
            .y = narrow_view(y), .x = narrow_view(x), .batch = 2, .positions = 4, .channels = 3},
        queue);
    EXPECT_EQ(y[1], x[3]);
    EXPECT_EQ(y[23], x[23]);
  });
}

TEST(TransposePositions, Checks) {
  Tensor x(24), y(24);
  TransposePositions a{.y = y, .x = x, .batch = 2, .positions = 4, .channels = 3};
  EXPECT_EQ(cost(a).bytes, 2 * 96);
  a.channels = 4;
  EXPECT_ERROR(check(a), "transpose_positions", "x");
  a.channels = 3;
  a.y = x;
  EXPECT_ERROR(check(a), "y may not be x");
}

}  // namespace
