// SPDX-License-Identifier: Apache-2.0
// Tests the loss of Barlow Twins against its definition and derivative.
#include "kernels/barlow_terms.hpp"

#include "loss_rig.hpp"

COVERS(barlow_terms);

namespace {

using namespace kernels;
using namespace rig;

constexpr double kTwins = 12, kTwinFactor = 0.25, kTwinLambda = 0.125;

std::pair<double, double> twin_loss(const Doubles& products, int64_t width) {
  double diagonal = 0, off = 0;
  for (int64_t i = 0; i < width; ++i)
    for (int64_t j = 0; j < width; ++j) {
      const double c = products[size_t(i * width + j)] / kTwins;
      (i == j ? diagonal : off) += i == j ? (c - 1) * (c - 1) : c * c;
    }
  return {kTwinFactor * diagonal, kTwinFactor * kTwinLambda * off};
}

TEST(BarlowTerms, AgreesWithDefinitionAndDerivative) {
  for (int64_t width : {1, 2, 7, 40}) {
    TestQueue queue(2);
    Tensor products(normals(width * width, "c", 10), 1), loss(3), diagonal(2), off(1),
        by(std::vector<float>{2});
    const Doubles x = doubles(products.values());
    run(BarlowTerms{.products = products,
                    .loss = loss,
                    .diagonal = diagonal,
                    .off = off,
                    .loss_scale = by,
                    .width = width,
                    .examples = kTwins,
                    .factor = float(kTwinFactor),
                    .lambda = float(kTwinLambda),
                    .scale = 3},
        queue);
    const auto [d, o] = twin_loss(x, width);
    expect_close(loss.values(), {d + o, d + o, d + o}, 1e-6, "loss");
    expect_close(diagonal.values(), {d, d}, 1e-6, "diagonal");
    expect_close(off.values(), {o}, 1e-6, "off");
    Doubles want = differences(x, [&](const Doubles& at) {
      const auto [a, b] = twin_loss(at, width);
      return 6 * (a + b);
    });
    expect_close(products.values(), want, 1e-6, "derivative");
  }
}

TEST(BarlowTerms, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        Tensor products(normals(200 * 200, "c")), loss(1), diagonal(1), off(1);
        run(BarlowTerms{.products = products,
                        .loss = loss,
                        .diagonal = diagonal,
                        .off = off,
                        .width = 200,
                        .examples = 5,
                        .lambda = 0.1f},
            queue);
        return joined({products.values(), loss.values(), off.values()});
      },
      false);
}

TEST(BarlowTerms, Checks) {
  Tensor products(9), loss(1), diagonal(1), off(1);
  BarlowTerms a{.products = products, .loss = loss, .diagonal = diagonal, .off = off, .width = 3};
  EXPECT_EQ(cost(a).bytes, 72);
  a.width = 4;
  EXPECT_ERROR(check(a), "barlow_terms", "products");
}

}  // namespace
