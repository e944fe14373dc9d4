// SPDX-License-Identifier: Apache-2.0
#include "kernels/gelu.hpp"

#include "rig.hpp"

COVERS(gelu_forward);
COVERS(gelu_backward);

namespace {

using namespace kernels;
using namespace rig;

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_derivative(double x) {
  double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

std::vector<float> inputs(int64_t count) {
  std::vector<float> x = normals(count, "x", 2.5);
  for (size_t i = 0; i < x.size(); i += 7) x[i] *= 8;  // tails as well
  return x;
}

TEST(VectorExp, IsAccurateEverywhere) {
  for_each_table([] {
    std::vector<float> x;
    for (int i = -859; i < 869; ++i)
      for (int j = 0; j < 64; ++j) x.push_back(float(i) * 0.1f + float(j) * 0.0016f);
    std::vector<float> y(x.size());
    vector_table().exp_of(y.data(), x.data(), int64_t(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double expected = std::exp(double(x[i]));
      double unit = expected * 0x1p-24;  // half a unit in the last place
      worst = std::max(worst, std::abs(double(y[i]) - expected) / unit);
    }
    EXPECT_LT(worst, 4) << "half units in the last place";
  });
}

TEST(VectorExp, Extremes) {
  for_each_table([] {
    float inf = std::numeric_limits<float>::infinity();
    std::vector<float> x{0, -0.0f, inf, -inf, NAN, 87, -86, 1e30f, -1e30f}, y(x.size());
    vector_table().exp_of(y.data(), x.data(), int64_t(x.size()));
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_TRUE(std::isnormal(y[5]) && std::isnormal(y[6]));
    for (int i : {2, 7}) EXPECT_EQ(y[i], y[5]);  // constant beyond the ends
    for (int i : {3, 8}) EXPECT_EQ(y[i], y[6]);
  });
}

TEST(Gelu, AgreesWithReference) {
  for_each_table([] {
    for (int threads : thread_counts({1, 2}))
      for (int64_t count : {0, 1, 7, 8, 15, 16, 17, 100, 40001}) {
        TestQueue queue(threads);
        Tensor x(inputs(count), 1), y(count, 3), dy(normals(count, "dy")), dx(count, 5);
        run(GeluForward{y, x}, queue);
        run(GeluBackward{dx, dy, x}, queue);
        // CUDA's fast division alone may be 2.4e-7 off.
        const double tolerance = on_cuda() ? 5e-7 : 3e-7;
        std::vector<double> ey, edx;
        for (int64_t i = 0; i < count; ++i) {
          ey.push_back(gelu(double(x[i])));
          edx.push_back(double(dy[i]) * gelu_derivative(double(x[i])));
          // Per element: relative to |x|, since gelu(x) <= |x| and gelu'(x) is of order 1.
          EXPECT_NEAR(double(y[i]), ey.back(), tolerance * std::max(1e-3, std::abs(double(x[i]))))
              << x[i];
        }
        expect_close(y.values(), ey, tolerance, "gelu");
        expect_close(dx.values(), edx, 1e-6, "gelu gradient");
        run(GeluBackward{dy, dy, x}, queue);  // in place
        EXPECT_TRUE(same_bits(dy.values(), dx.values()));
      }
  });
}

TEST(Gelu, ReferenceGradientIsTheDerivative) {
  for (double x = -6; x < 6; x += 0.37)
    EXPECT_NEAR(gelu_derivative(x), (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5, 1e-9);
}

TEST(Gelu, Extremes) {
  for_each_table([] {
    TestQueue queue;
    float inf = std::numeric_limits<float>::infinity();
    Tensor x(std::vector<float>{-1e30f, -1e4f, -40, 40, 1e4f, 1e30f, inf, NAN, 0}), y(9), dx(9);
    Tensor dy(std::vector<float>(9, 1.0f));
    run(GeluForward{y, x}, queue);
    run(GeluBackward{dx, dy, x}, queue);
    for (int i : {0, 1, 2}) {
      EXPECT_EQ(y[i], 0);
      EXPECT_EQ(dx[i], 0);
    }
    for (int i : {3, 4, 5, 6}) {
      EXPECT_FLOAT_EQ(y[i], x[i]);  // GPUs divide with an error of 2 units in the last place
      EXPECT_EQ(dx[i], 1);
    }
    EXPECT_TRUE(std::isnan(y[7]));
    EXPECT_TRUE(std::isnan(dx[7]));
    EXPECT_EQ(y[8], 0);
    EXPECT_FLOAT_EQ(dx[8], 0.5f);
  });
}

TEST(Gelu, SameBitsForAllThreads) {
  expect_same_bits_for_all_threads([](TestQueue& queue) {
    int64_t n = 50003;
    Tensor x(inputs(n)), y(n), dy(normals(n, "dy"));
    run(GeluForward{y, x}, queue);
    run(GeluBackward{dy, dy, x}, queue);
    std::vector<float> out = y.values(), more = dy.values();
    out.insert(out.end(), more.begin(), more.end());
    return out;
  });
}

TEST(Gelu, CostAndChecks) {
  Tensor x(10), y(10), z(9);
  EXPECT_EQ(cost(GeluForward{y, x}).bytes, 80);
  EXPECT_EQ(cost(GeluBackward{y, y, x}).bytes, 120);
  EXPECT_ERROR(check(GeluForward{z, x}), "gelu_forward", "y has 9 elements", "[10]");
  EXPECT_ERROR(check(GeluBackward{y, z, x}), "gelu_backward", "dy has 9 elements");
}

}  // namespace
