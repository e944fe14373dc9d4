// SPDX-License-Identifier: Apache-2.0
// Tests cross-entropy over classes against a naive reference in double: softmax and sigmoid,
// smoothing, blends of two labels, ranks.
#include "kernels/class_xent.hpp"

#include <array>

#include "xent_rig.hpp"

COVERS(class_xent);

namespace {

using namespace kernels;
using namespace rig;

struct Case {
  int64_t rows, columns;
  ClassLoss kind;
  float smoothing;
  bool blends;
  std::vector<int32_t> labels = integers(rows, 0, columns, "labels"),
                       others = integers(rows, 0, columns, "others");
  std::vector<float> shares{};

  std::string text() const {
    return fmt::format("{} x {}, {}, smoothing {}, blends {}", rows, columns, int(kind), smoothing,
                       blends);
  }
};

constexpr double kBeta = 0.75;

struct Reference {
  std::vector<double> loss, gradient;
};

// Writes out the formulas: the target as a vector, then sums over all classes.
Reference reference(const std::vector<double>& x, const Case& c) {
  Reference out{std::vector<double>(size_t(c.rows)), std::vector<double>(x.size())};
  for (int64_t r = 0; r < c.rows; ++r) {
    const double* z = x.data() + r * c.columns;
    auto smoothed = [&](int64_t label, int64_t k) {
      return k == label      ? 1 - double(c.smoothing)
             : c.columns > 1 ? double(c.smoothing) / double(c.columns - 1)
                             : 0;
    };
    double total = 0;
    for (int64_t k = 0; k < c.columns; ++k) total += std::exp(z[k]);
    for (int64_t k = 0; k < c.columns; ++k) {
      const double share = c.blends ? double(c.shares[size_t(r)]) : 1;
      const double q =
          share * smoothed(c.labels[size_t(r)], k) + (1 - share) * smoothed(c.others[size_t(r)], k);
      if (compares_values(c.kind)) {
        const double e = z[k] - q, n = double(c.columns), linear = std::abs(e) - kBeta / 2;
        const bool small = std::abs(e) < kBeta;
        out.loss[size_t(r)] += (c.kind == ClassLoss::squared ? e * e
                                : small                      ? e * e / (2 * kBeta)
                                                             : linear) /
                               n;
        out.gradient[size_t(r * c.columns + k)] = (c.kind == ClassLoss::squared ? 2 * e
                                                   : small                      ? e / kBeta
                                                           : (e > 0 ? 1 : -1)) /
                                                  n;
        continue;
      }
      const double p =
          c.kind == ClassLoss::softmax ? std::exp(z[k]) / total : 1 / (1 + std::exp(-z[k]));
      out.loss[size_t(r)] -=
          q * std::log(p) + (c.kind == ClassLoss::softmax ? 0 : (1 - q) * std::log(1 - p));
      out.gradient[size_t(r * c.columns + k)] = p - q;
    }
  }
  return out;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const auto& kinds : {std::array{ClassLoss::softmax, ClassLoss::sigmoid},
                            std::array{ClassLoss::squared, ClassLoss::smooth_l1}})
    for (auto [rows, columns] :
         {std::pair<int64_t, int64_t>{0, 5}, {1, 1}, {4, 2}, {7, 99}, {3, 1000}, {2, 3001}})
      for (ClassLoss kind : kinds)
        for (float smoothing : {0.0f, 0.1f})
          for (bool blends : {false, true}) {
            if (columns == 1 && smoothing > 0) continue;
            Case c{rows, columns, kind, smoothing, blends};
            for (int64_t r = 0; r < rows; ++r)
              c.shares.push_back(0.5f + 0.5f * float(r) / float(rows));
            if (rows > 2) c.others[2] = c.labels[2];
            out.push_back(c);
          }
  return out;
}

ClassXent arguments(const Case& c, View logits, View loss, bool gradient) {
  ClassXent a{.logits = logits,
              .labels = device::view(c.labels.data(), c.rows),
              .loss = loss,
              .rows = c.rows,
              .columns = c.columns,
              .kind = c.kind,
              .smoothing = c.smoothing,
              .beta = float(kBeta),
              .gradient = gradient,
              .scale = 0.25f};
  if (c.blends) {
    a.others = device::view(c.others.data(), c.rows);
    a.shares = device::view(c.shares.data(), c.rows);
  }
  return a;
}

TEST(ClassXent, ReferenceGradientIsTheDerivative) { check_reference_gradients(cases(), reference); }

TEST(ClassXent, AgreesWithReference) { check_agreement(cases(), reference, arguments, {}); }

TEST(ClassXent, LossScaleIsOfTheGradientAlone) { check_loss_scale(cases().at(9), arguments); }

TEST(ClassXent, RanksCountLargerLogitsAndEqualOnesBefore) {
  TestQueue queue;
  const float x = NAN;
  Tensor logits(std::vector<float>{3, 1, 2, 0, 5, 5, 5, 5, 0, x, 1, 2, x, 4, 1, 2}), loss(4);
  std::vector<int32_t> labels{2, 1, 3, 0}, ranks(4, -1);
  run(ClassXent{.logits = logits,
                .labels = device::view(labels.data(), 4),
                .loss = loss,
                .ranks = device::view(ranks.data(), 4),
                .rows = 4,
                .columns = 4,
                .gradient = false},
      queue);
  EXPECT_EQ(ranks, (std::vector<int32_t>{1, 1, 1, 3}))
      << "among ties the first wins, and NaN is larger than all numbers";
  EXPECT_TRUE(std::isnan(loss[2]) && std::isnan(loss[3]));
  labels = {0, 0, 2, 1};
  run(ClassXent{.logits = logits,
                .labels = device::view(labels.data(), 4),
                .loss = loss,
                .ranks = device::view(ranks.data(), 4),
                .rows = 4,
                .columns = 4},
      queue);
  EXPECT_EQ(ranks, (std::vector<int32_t>{0, 0, 2, 1}));
}

TEST(ClassXent, UnknownLabelsHaveNeitherLossNorGradient) {
  for (ClassLoss kind : {ClassLoss::softmax, ClassLoss::sigmoid, ClassLoss::smooth_l1})
    for (int64_t columns : {5, 300}) {
      TestQueue queue(2);
      Tensor logits(normals(3 * columns, "z")), loss(3), known(normals(3 * columns, "z")),
          known_loss(3);
      std::vector<int32_t> labels{1, -1, 3}, all{1, 0, 3}, ranks(3), known_ranks(3);
      ClassXent a{.logits = logits,
                  .labels = device::view(labels.data(), 3),
                  .loss = loss,
                  .ranks = device::view(ranks.data(), 3),
                  .rows = 3,
                  .columns = columns,
                  .kind = kind,
                  .smoothing = 0.1f};
      run(a, queue);
      a.logits = known;
      a.labels = device::view(all.data(), 3);
      a.loss = known_loss;
      a.ranks = device::view(known_ranks.data(), 3);
      run(a, queue);
      EXPECT_EQ(loss[1], 0);
      EXPECT_EQ(ranks[1], columns);
      for (int64_t r : {0, 2}) {
        EXPECT_EQ(loss[r], known_loss[r]);
        EXPECT_EQ(ranks[size_t(r)], known_ranks[size_t(r)]);
      }
      for (int64_t i = 0; i < 3 * columns; ++i)
        EXPECT_EQ(logits[i], i / columns == 1 ? 0 : known[i]) << i;
    }
}

TEST(ClassXent, HugeLogitsStayFinite) {
  for (ClassLoss kind : {ClassLoss::softmax, ClassLoss::sigmoid}) {
    TestQueue queue;
    Tensor logits(std::vector<float>{1e30f, -1e30f, 0, -1e30f, 1e30f, 0}), loss(2);
    std::vector<int32_t> labels{0, 1};
    run(ClassXent{.logits = logits,
                  .labels = device::view(labels.data(), 2),
                  .loss = loss,
                  .rows = 2,
                  .columns = 3,
                  .kind = kind},
        queue);
    for (float v : logits.values()) EXPECT_TRUE(std::isfinite(v));
    for (float v : loss.values()) EXPECT_LE(v, 1);
  }
}

TEST(ClassXent, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        const Case c = cases().at(15);
        Tensor logits(normals(c.rows * c.columns, "z")), loss(c.rows);
        run(arguments(c, logits, loss, true), queue);
        std::vector<float> out = logits.values(), more = loss.values();
        out.insert(out.end(), more.begin(), more.end());
        return out;
      },
      false);
}

TEST(ClassXent, CostAndChecks) {
  std::vector<int32_t> labels(3);
  Tensor logits(12), loss(3), shares(3);
  ClassXent a{.logits = logits,
              .labels = device::view(labels.data(), 3),
              .loss = loss,
              .rows = 3,
              .columns = 4};
  check(a);
  EXPECT_EQ(cost(a).bytes, 4 * (24 + 9));
  a.shares = shares;
  EXPECT_ERROR(check(a), "class_xent", "others and shares come together");
  a.shares = {};
  a.smoothing = 1;
  EXPECT_ERROR(check(a), "smoothing is 1");
  a.smoothing = 0;
  a.columns = 5;
  EXPECT_ERROR(check(a), "logits has 12 elements", "[3, 5]");
}

}  // namespace
