// SPDX-License-Identifier: Apache-2.0
// Tests rows divided by their length: against the formula, the derivative, weight norm, rows of
// length 0.
#include "kernels/l2_normalize.hpp"

#include "loss_rig.hpp"

COVERS(l2_normalize_forward);
COVERS(l2_normalize_backward);

namespace {

using namespace kernels;
using namespace rig;

struct LengthCase {
  int64_t rows, width;
  bool scaled;  // rows have scales
};

Doubles unit_reference(const Doubles& x, const Doubles& scales, const LengthCase& c) {
  Doubles y(x.size());
  for (int64_t r = 0; r < c.rows; ++r) {
    double square = 0;
    for (int64_t i = 0; i < c.width; ++i)
      square += x[size_t(r * c.width + i)] * x[size_t(r * c.width + i)];
    for (int64_t i = 0; i < c.width; ++i)
      y[size_t(r * c.width + i)] =
          2.5 * (c.scaled ? scales[size_t(r)] : 1) * x[size_t(r * c.width + i)] / std::sqrt(square);
  }
  return y;
}

void check_length_case(const LengthCase& c) {
  SCOPED_TRACE(fmt::format("{} x {}, scaled {}", c.rows, c.width, c.scaled));
  TestQueue queue(2);
  const int64_t n = c.rows * c.width;
  Tensor x(normals(n, "x"), 1), y(n, 2), inverse(c.rows), scales(normals(c.rows, "s", 0.3, 1)),
      dy(normals(n, "dy")), dx(n, 3), dscales(c.rows);
  const View row_scale = c.scaled ? scales.view() : View{};
  run(L2NormalizeForward{.y = y,
                         .x = x,
                         .inverse = inverse,
                         .row_scale = row_scale,
                         .rows = c.rows,
                         .width = c.width,
                         .scale = 2.5f},
      queue);
  expect_close(y.values(), unit_reference(doubles(x.values()), doubles(scales.values()), c), 1e-6,
               "forward");
  L2NormalizeBackward back{.dx = dx,
                           .dy = dy,
                           .x = x,
                           .inverse = inverse,
                           .row_scale = row_scale,
                           .drow_scale = c.scaled ? dscales.view() : View{},
                           .rows = c.rows,
                           .width = c.width,
                           .scale = 2.5f};
  run(back, queue);
  auto objective = [&](const Doubles& at, const Doubles& s) {
    const Doubles out = unit_reference(at, s, c);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * double(dy.values()[i]);
    return sum;
  };
  const Doubles x0 = doubles(x.values()), s0 = doubles(scales.values());
  Doubles want = differences(x0, [&](const Doubles& at) { return objective(at, s0); });
  expect_close(dx.values(), want, 1e-5, "dx", 1);
  if (c.scaled)
    expect_close(dscales.values(),
                 differences(s0, [&](const Doubles& at) { return objective(x0, at); }), 1e-5,
                 "gradient of scales", 1);
  back.write = back.row_scale_write = Write::accumulate;
  run(back, queue);
  for (double& w : want) w *= 2;
  expect_close(dx.values(), want, 1e-5, "dx added", 1);
}

TEST(L2Normalize, AgreesWithFormulaAndDerivative) {
  for (const LengthCase& c : {LengthCase{1, 5, false}, {3, 1, false}, {7, 13, true}, {4, 33, true}})
    check_length_case(c);
}

TEST(L2Normalize, RowsOfLengthZeroStayFinite) {
  TestQueue queue;
  Tensor x(std::vector<float>{0, 0, 3, 4}), y(4), inverse(2), dy(std::vector<float>{1, 2, 0, 1}),
      dx(4);
  run(L2NormalizeForward{.y = y, .x = x, .inverse = inverse, .rows = 2, .width = 2}, queue);
  expect_close(y.values(), {0, 0, 0.6, 0.8}, 1e-6, "y");
  run(L2NormalizeBackward{.dx = dx, .dy = dy, .x = x, .inverse = inverse, .rows = 2, .width = 2},
      queue);
  expect_close({dx[0], dx[1]}, {1e12, 2e12}, 1e-6, "not projected");
  expect_close({dx[2], dx[3]}, {-0.096, 0.072}, 1e-5, "projected");
}

TEST(L2Normalize, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        Tensor x(normals(300 * 70, "x")), dy(normals(300 * 70, "dy")), y(300 * 70), inverse(300);
        run(L2NormalizeForward{.y = y, .x = x, .inverse = inverse, .rows = 300, .width = 70},
            queue);
        run(
            L2NormalizeBackward{
                .dx = dy, .dy = dy, .x = x, .inverse = inverse, .rows = 300, .width = 70},
            queue);
        return joined({y.values(), dy.values()});
      },
      false);
}

TEST(L2Normalize, Checks) {
  Tensor x(6), y(6), inverse(2);
  L2NormalizeForward a{.y = y, .x = x, .inverse = inverse, .rows = 2, .width = 3};
  check(a);
  EXPECT_EQ(cost(a).bytes, 4 * (12 + 2));
  a.rows = 3;
  EXPECT_ERROR(check(a), "l2_normalize_forward", "y");
  L2NormalizeBackward b{
      .dx = y, .dy = y, .x = x, .inverse = inverse, .drow_scale = inverse, .rows = 2, .width = 3};
  EXPECT_ERROR(check(b), "drow_scale needs row_scale");
}

}  // namespace
