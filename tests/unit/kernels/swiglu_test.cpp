// SPDX-License-Identifier: Apache-2.0
// Tests the hidden layer of SwiGLU against its formula and derivatives in double, in all types.
#include "kernels/swiglu.hpp"

#include "narrow_type.hpp"
#include "rig.hpp"

COVERS(swiglu_forward);
COVERS(swiglu_backward);

namespace {

using namespace kernels;
using namespace rig;

double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_slope(double x) { return (silu(x + 1e-5) - silu(x - 1e-5)) / 2e-5; }

TEST(Swiglu, AgreesWithFormulaAndDerivatives) {
  for (const int64_t n : {1, 7, 1001, 5000}) {
    TestQueue queue(2);
    Tensor gate(normals(n, "g", 3), 1), value(normals(n, "v"), 1), y(n, 1), dy(normals(n, "d"), 1),
        dgate(n, 1), dvalue(n, 1);
    run(SwigluForward{y, gate, value}, queue);
    run(SwigluBackward{dgate, dvalue, dy, gate, value}, queue);
    std::vector<double> want, want_dgate, want_dvalue;
    for (int64_t i = 0; i < n; ++i) {
      const double g = double(gate[i]), v = double(value[i]), d = double(dy[i]);
      want.push_back(silu(g) * v);
      want_dgate.push_back(d * v * silu_slope(g));
      want_dvalue.push_back(d * silu(g));
    }
    expect_close(y.values(), want, 1e-6, "forward");
    expect_close(dgate.values(), want_dgate, 2e-6, "dgate");
    expect_close(dvalue.values(), want_dvalue, 1e-6, "dvalue");
    // In place.
    const std::vector<float> plain = dvalue.values();
    run(SwigluBackward{dgate, dy, dy, gate, value}, queue);
    EXPECT_TRUE(same_bits(dy.values(), plain));
    run(SwigluForward{value, gate, value}, queue);
    EXPECT_TRUE(same_bits(value.values(), y.values()));
  }
}

TEST(Swiglu, FarGatesAndNotANumber) {
  TestQueue queue;
  Tensor gate(std::vector<float>{-1000, -90, 90, 1000, NAN}), value({1, 1, 1, 1, 1}), y(5),
      dy({1, 1, 1, 1, 1}), dgate(5), dvalue(5);
  run(SwigluForward{y, gate, value}, queue);
  run(SwigluBackward{dgate, dvalue, dy, gate, value}, queue);
  const float want[] = {0, 0, 90, 1000}, slope[] = {0, 0, 1, 1};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(y[i], want[i], 1e-4);
    EXPECT_NEAR(dvalue[i], want[i], 1e-4);
    EXPECT_NEAR(dgate[i], slope[i], 1e-6);
  }
  EXPECT_TRUE(std::isnan(y[4]) && std::isnan(dgate[4]) && std::isnan(dvalue[4]));
}

TEST(Swiglu, NarrowTypesRoundTheSameValues) {
  for_each_narrow_type([] {
    TestQueue queue(2);
    const std::vector<uint16_t> g = narrowed(normals(300, "g")), v = narrowed(normals(300, "v")),
                                d = narrowed(normals(300, "d"));
    std::vector<uint16_t> gate = g, value = v, dy = d, y(300), dgate(300), dvalue(300);
    run(SwigluForward{narrow_view(y), narrow_view(gate), narrow_view(value)}, queue);
    run(SwigluBackward{narrow_view(dgate), narrow_view(dvalue), narrow_view(dy), narrow_view(gate),
                       narrow_view(value)},
        queue);
    for (size_t i = 0; i < g.size(); ++i) {
      const double at = double(widened(g[i])), by = double(widened(v[i])),
                   slope = double(widened(d[i]));
      ASSERT_NEAR(double(widened(y[i])), silu(at) * by, 0.01 * std::abs(silu(at) * by) + 1e-6);
      ASSERT_NEAR(double(widened(dvalue[i])), slope * silu(at),
                  0.01 * std::abs(slope * silu(at)) + 1e-6);
      ASSERT_NEAR(double(widened(dgate[i])), slope * by * silu_slope(at),
                  0.01 * std::abs(slope * by * silu_slope(at)) + 1e-5);
    }
  });
}

TEST(Swiglu, CostAndChecks) {
  Tensor gate(24), value(24), y(24), other(23);
  EXPECT_EQ(cost(SwigluForward{y, gate, value}).bytes, 4 * 3 * 24);
  EXPECT_EQ(cost(SwigluBackward{y, y, y, gate, value}).bytes, 4 * 5 * 24);
  EXPECT_ERROR(check(SwigluForward{y, gate, other}), "swiglu_forward", "value has 23 elements");
  EXPECT_ERROR(check(SwigluBackward{y, y, other, gate, value}), "swiglu_backward", "dy");
}

}  // namespace
