// SPDX-License-Identifier: Apache-2.0
// Checks of cross-entropies over classes: their references, which return loss and gradient of each
// row, against differences, and the ops against the references.
#pragma once

#include "rig.hpp"

namespace rig {

// A case has rows, columns and text(). reference(logits, case) returns the unscaled values.
template <class Case, class Reference>
void check_reference_gradients(const std::vector<Case>& cases, const Reference& reference) {
  for (const Case& c : cases) {
    if (c.rows != 4) continue;
    const std::vector<double> z = doubles(normals(c.rows * c.columns, "z"));
    const auto f = reference(z, c);
    for (size_t i = 0; i < z.size(); ++i) {
      std::vector<double> up = z, down = z;
      up[i] += 1e-5;
      down[i] -= 1e-5;
      const size_t r = i / size_t(c.columns);
      EXPECT_NEAR(f.gradient[i], (reference(up, c).loss[r] - reference(down, c).loss[r]) / 2e-5,
                  1e-8)
          << c.text();
    }
  }
}

struct XentTolerance {
  double gradient = 1e-6, least = 0;
};

// arguments(case, logits, loss, gradient) returns an op whose gradient is a quarter of the
// reference's.
template <class Case, class Reference, class Arguments>
void check_agreement(const std::vector<Case>& cases, const Reference& reference,
                     const Arguments& arguments, const XentTolerance& tolerance) {
  for (const Case& c : cases)
    for (bool gradient : {true, false}) {
      SCOPED_TRACE(c.text());
      TestQueue queue(2);
      Tensor logits(normals(c.rows * c.columns, "z", 3, -2), 1), loss(c.rows, 3);
      const std::vector<float> before = logits.values();
      auto f = reference(doubles(before), c);
      run(arguments(c, logits, loss, gradient), queue);
      expect_close(loss.values(), f.loss, 1e-6, "loss", tolerance.least);
      if (!gradient) {
        EXPECT_TRUE(same_bits(logits.values(), before));
        continue;
      }
      for (double& g : f.gradient) g *= 0.25;
      expect_close(logits.values(), f.gradient, tolerance.gradient, "gradient", tolerance.least);
    }
}

// A loss scale must be a factor of the gradient alone.
template <class Case, class Arguments>
void check_loss_scale(const Case& c, const Arguments& arguments) {
  TestQueue queue;
  const int64_t n = c.rows * c.columns;
  Tensor one(normals(n, "z")), other(normals(n, "z")), loss(c.rows), same_loss(c.rows),
      by(std::vector<float>{1024});
  run(arguments(c, one, loss, true), queue);
  auto scaled = arguments(c, other, same_loss, true);
  scaled.loss_scale = by;
  run(scaled, queue);
  EXPECT_TRUE(same_bits(loss.values(), same_loss.values()));
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(other[i], 1024 * one[i]) << i;
}

}  // namespace rig
