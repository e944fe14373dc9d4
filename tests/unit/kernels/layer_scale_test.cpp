// SPDX-License-Identifier: Apache-2.0
// Tests layer scale with stochastic depth against plain loops in double, in all types.
#include "kernels/layer_scale.hpp"

#include "narrow_type.hpp"
#include "rig.hpp"

COVERS(layer_scale_forward);
COVERS(layer_scale_backward);

namespace {

using namespace kernels;
using namespace rig;

struct ScaleCase {
  int64_t images, rows, columns;
  int64_t count() const { return images * rows * columns; }
};
const ScaleCase kScaleCases[] = {{1, 1, 1}, {3, 17, 20},  {5, 49, 48},
                                 {2, 3, 7}, {4, 64, 130}, {0, 2, 3}};

// Every third image is dropped.
std::vector<float> scale_factors(const ScaleCase& c) {
  std::vector<float> out;
  for (int64_t i = 0; i < c.images; ++i) out.push_back(i % 3 == 1 ? 0 : 1.25f);
  return out;
}

TEST(LayerScale, AgreesWithFormulaAndDerivative) {
  for (const ScaleCase& c : kScaleCases)
    for (const bool drops : {false, true}) {
      SCOPED_TRACE(fmt::format("{} x {} x {} {}", c.images, c.rows, c.columns, drops));
      TestQueue queue(2);
      Tensor x(normals(c.count(), "x"), 1), residual(normals(c.count(), "r")), y(c.count(), 1),
          scale(normals(c.columns, "s")), factor(scale_factors(c)), dy(normals(c.count(), "dy")),
          dx(c.count(), 1), dscale(normals(c.columns, "before"));
      const std::vector<float> before = dscale.values();
      const View given = drops ? factor.view() : View{};
      run(LayerScaleForward{y, residual, x, scale, given, c.images, c.rows, c.columns}, queue);
      run(LayerScaleBackward{dx, dscale, dy, x, scale, given, c.images, c.rows, c.columns,
                             Write::accumulate},
          queue);
      std::vector<double> want, want_dx, want_dscale(before.begin(), before.end());
      for (int64_t i = 0; i < c.count(); ++i) {
        const int64_t j = i % c.columns;
        const double f = drops ? double(factor[i / c.columns / c.rows]) : 1;
        want.push_back(double(residual[i]) + f * double(scale[j]) * double(x[i]));
        want_dx.push_back(f * double(scale[j]) * double(dy[i]));
        want_dscale[size_t(j)] += f * double(dy[i]) * double(x[i]);
      }
      expect_close(y.values(), want, 1e-6, "forward");
      expect_close(dx.values(), want_dx, 1e-6, "dx");
      expect_close(dscale.values(), want_dscale, 3e-6, "dscale");
      // In place, and without the sums.
      run(LayerScaleForward{residual, residual, x, scale, given, c.images, c.rows, c.columns},
          queue);
      EXPECT_TRUE(same_bits(residual.values(), y.values()));
      Tensor alone(c.count());
      run(LayerScaleBackward{alone, {}, dy, x, scale, given, c.images, c.rows, c.columns}, queue);
      EXPECT_TRUE(same_bits(alone.values(), dx.values()));
    }
}

TEST(LayerScale, NarrowTypesRoundTheSameValues) {
  for_each_narrow_type([] {
    const ScaleCase c{3, 5, 24};
    TestQueue queue(2);
    std::vector<uint16_t> x = narrowed(normals(c.count(), "x")), dx(x.size());
    Tensor residual(normals(c.count(), "r")), y(c.count()), scale(normals(c.columns, "s")),
        factor(scale_factors(c)), dy(normals(c.count(), "dy")), dscale(c.columns);
    run(LayerScaleForward{y, residual, narrow_view(x), scale, factor, c.images, c.rows, c.columns},
        queue);
    run(LayerScaleBackward{narrow_view(dx), dscale, dy, narrow_view(x), scale, factor, c.images,
                           c.rows, c.columns},
        queue);
    std::vector<double> want, want_dscale(size_t(c.columns));
    for (int64_t i = 0; i < c.count(); ++i) {
      const int64_t j = i % c.columns;
      const double f = double(factor[i / c.columns / c.rows]), v = double(widened(x[size_t(i)]));
      want.push_back(double(residual[i]) + f * double(scale[j]) * v);
      want_dscale[size_t(j)] += f * double(dy[i]) * v;
      const double slope = f * double(scale[j]) * double(dy[i]);
      ASSERT_NEAR(double(widened(dx[size_t(i)])), slope, 0.01 * std::abs(slope) + 1e-6);
    }
    expect_close(y.values(), want, 1e-6, "forward");
    expect_close(dscale.values(), want_dscale, 3e-6, "dscale");
  });
}

TEST(LayerScale, CostAndChecks) {
  Tensor x(24), residual(24), y(24), scale(4), factor(2), dscale(4);
  LayerScaleForward forward{y, residual, x, scale, factor, 2, 3, 4};
  LayerScaleBackward backward{y, dscale, residual, x, scale, factor, 2, 3, 4};
  check(forward);
  check(backward);
  EXPECT_EQ(cost(forward).bytes, 4 * (3 * 24 + 4));
  EXPECT_EQ(cost(backward).bytes, 4 * (3 * 24 + 2 * 4));
  forward.rows = backward.rows = 2;
  EXPECT_ERROR(check(forward), "layer_scale_forward", "x has 24 elements");
  EXPECT_ERROR(check(backward), "layer_scale_backward", "x has 24 elements");
}

}  // namespace
