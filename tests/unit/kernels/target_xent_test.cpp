// SPDX-License-Identifier: Apache-2.0
// Tests cross-entropy with a matrix of targets against a naive reference in double: classes that
// are not known, weights, distributions, hits.
#include "kernels/target_xent.hpp"

#include <array>

#include "xent_rig.hpp"

COVERS(target_xent);

namespace {

using namespace kernels;
using namespace rig;

struct Case {
  int64_t rows, columns;
  ClassLoss kind;
  bool weighted;
  std::vector<float> targets{}, weights{};

  std::string text() const {
    return fmt::format("{} x {}, {}, weighted {}", rows, columns, int(kind), weighted);
  }
};

constexpr double kBeta = 0.75;

struct Reference {
  std::vector<double> loss, gradient;
};

// Writes out the formulas with sums over all classes.
Reference target_reference(const std::vector<double>& x, const Case& c) {
  Reference out{std::vector<double>(size_t(c.rows)), std::vector<double>(x.size())};
  for (int64_t r = 0; r < c.rows; ++r) {
    const double* z = x.data() + r * c.columns;
    double total = 0, mass = 0;
    for (int64_t k = 0; k < c.columns; ++k) total += std::exp(z[k]);
    auto target = [&](int64_t k) { return double(c.targets[size_t(r * c.columns + k)]); };
    auto weight = [&](int64_t k) {
      return target(k) < 0 && !compares_values(c.kind) ? 0
             : c.weighted                              ? double(c.weights[size_t(k)])
                                                       : 1;
    };
    for (int64_t k = 0; k < c.columns; ++k) mass += weight(k) * target(k);
    for (int64_t k = 0; k < c.columns; ++k) {
      if (compares_values(c.kind)) {
        const double e = z[k] - target(k), w = weight(k) / double(c.columns);
        const bool squared = c.kind == ClassLoss::squared, small = std::abs(e) < kBeta;
        out.loss[size_t(r)] += w * (squared ? e * e
                                    : small ? e * e / (2 * kBeta)
                                            : std::abs(e) - kBeta / 2);
        out.gradient[size_t(r * c.columns + k)] = w * (squared ? 2 * e
                                                       : small ? e / kBeta
                                                       : e > 0 ? 1
                                                               : -1);
        continue;
      }
      const bool softmax = c.kind == ClassLoss::softmax;
      const double p = softmax ? std::exp(z[k]) / total : 1 / (1 + std::exp(-z[k]));
      const double t = target(k), w = weight(k);
      if (w != 0)
        out.loss[size_t(r)] -= w * (t * std::log(p) + (softmax ? 0 : (1 - t) * std::log(1 - p)));
      out.gradient[size_t(r * c.columns + k)] = softmax ? mass * p - w * t : w * (p - t);
    }
  }
  return out;
}

// Targets are 1, 0 and not known for sigmoid, and shares for softmax. The first class is not known
// in any row.
std::vector<Case> cases() {
  std::vector<Case> out;
  for (const auto& kinds : {std::array{ClassLoss::softmax, ClassLoss::sigmoid},
                            std::array{ClassLoss::squared, ClassLoss::smooth_l1}})
    for (auto [rows, columns] :
         {std::pair<int64_t, int64_t>{0, 5}, {1, 1}, {4, 2}, {7, 99}, {3, 1000}, {2, 3001}})
      for (ClassLoss kind : kinds)
        for (bool weighted : {false, true}) {
          Case c{rows, columns, kind, weighted};
          const std::vector<int32_t> drawn = integers(rows * columns, -1, 2, "targets");
          for (int64_t i = 0; i < rows * columns; ++i) {
            const float t = float(drawn[size_t(i)]);
            if (compares_values(kind)) {
              c.targets.push_back(t * 0.5f * float(i % 5));
              continue;
            }
            c.targets.push_back(kind == ClassLoss::softmax && t > 0 ? 0.125f * float(i % 7) : t);
            if (columns > 2 && i % columns == 0) c.targets.back() = -1;
          }
          for (int64_t k = 0; k < columns; ++k) c.weights.push_back(0.5f + 0.25f * float(k % 5));
          out.push_back(c);
        }
  return out;
}

TargetXent arguments(const Case& c, View logits, View loss, bool gradient) {
  return {.logits = logits,
          .targets = device::view(c.targets.data(), c.rows * c.columns),
          .weights = c.weighted ? device::view(c.weights.data(), c.columns) : View(),
          .loss = loss,
          .rows = c.rows,
          .columns = c.columns,
          .kind = c.kind,
          .beta = float(kBeta),
          .gradient = gradient,
          .scale = 0.25f};
}

TEST(TargetXent, ReferenceGradientIsTheDerivative) {
  check_reference_gradients(cases(), target_reference);
}

TEST(TargetXent, AgreesWithReference) {
  check_agreement(cases(), target_reference, arguments, {.gradient = 2e-6, .least = 1e-3});
}

TEST(TargetXent, LossScaleIsOfTheGradientAlone) { check_loss_scale(cases().at(14), arguments); }

TEST(TargetXent, HitsAreOfKnownClassesAlone) {
  TestQueue queue;
  const std::vector<float> targets = {1, 0, 1, -1, 0, 1, 0, -1, -1, -1, -1, -1, 0, 0, 0, 0};
  Tensor logits(std::vector<float>{3, 1, 2, 9, 5, 5, 1, 9, 1, 2, 3, 4, 1, 2, 3, 4}), loss(4);
  std::vector<float> hits(4, 7);
  run(TargetXent{.logits = logits,
                 .targets = device::view(targets.data(), 16),
                 .loss = loss,
                 .hits = device::view(hits.data(), 4),
                 .rows = 4,
                 .columns = 4},
      queue);
  EXPECT_EQ(hits, (std::vector<float>{1, 0, 0, 0}))
      << "the first of equal logits counts, and an image without a shown class is no hit";
  EXPECT_EQ(loss[2], 0);
}

TEST(TargetXent, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        const Case c = cases().at(18);
        Tensor logits(normals(c.rows * c.columns, "z")), loss(c.rows);
        run(arguments(c, logits, loss, true), queue);
        std::vector<float> out = logits.values(), more = loss.values();
        out.insert(out.end(), more.begin(), more.end());
        return out;
      },
      false);
}

TEST(TargetXent, CostAndChecks) {
  Tensor logits(12), targets(12), loss(3), weights(3);
  TargetXent a{.logits = logits, .targets = targets, .loss = loss, .rows = 3, .columns = 4};
  check(a);
  EXPECT_EQ(cost(a).bytes, 4 * (36 + 7));
  a.weights = weights;
  EXPECT_ERROR(check(a), "target_xent", "weights has 3 elements");
}

}  // namespace
