// SPDX-License-Identifier: Apache-2.0
// Tests the sigmoid loss of pairs against its definition and numerical derivatives: parts of the
// rows, results that are left out, extreme logits.
#include "kernels/pair_sigmoid.hpp"

#include "loss_rig.hpp"

COVERS(pair_sigmoid);

namespace {

using namespace kernels;
using namespace rig;

constexpr int64_t kRows = 3, kColumns = 7, kFirst = 2;

// Returns the loss of a row, or of all (-1). x: the cosines, then t and b.
double pair_loss(const Doubles& x, int64_t row) {
  const double temperature = std::exp(x[x.size() - 2]), bias = x.back();
  double loss = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    if (row >= 0 && r != row) continue;
    for (int64_t c = 0; c < kColumns; ++c) {
      const double z = temperature * x[size_t(r * kColumns + c)] + bias;
      loss += std::log1p(std::exp(c == kFirst + r ? -z : z));
    }
  }
  return loss;
}

TEST(PairSigmoid, AgreesWithDefinitionAndDerivative) {
  for (const auto& [t, b] :
       {std::pair{0.0f, 0.0f}, {1.5f, -3.0f}, {2.25f, -10.0f}, {-1.0f, 4.0f}}) {
    SCOPED_TRACE(fmt::format("t {}, b {}", t, b));
    TestQueue queue(2);
    Tensor cosines(normals(kRows * kColumns, "cosines", 0.4)), temperature(std::vector<float>{t}),
        bias(std::vector<float>{b}), loss(kRows), dt(kRows), db(kRows);
    Doubles x = doubles(cosines.values());
    x.insert(x.end(), {double(t), double(b)});
    run(PairSigmoid{.cosines = cosines,
                    .t = temperature,
                    .b = bias,
                    .loss = loss,
                    .dt = dt,
                    .db = db,
                    .rows = kRows,
                    .columns = kColumns,
                    .first = kFirst,
                    .scale = 0.5f},
        queue);
    Doubles losses, along, total;
    for (int64_t r = 0; r < kRows; ++r) {
      losses.push_back(pair_loss(x, r));
      const Doubles d = differences(x, [&](const Doubles& at) { return pair_loss(at, r); });
      along.push_back(0.5 * d[d.size() - 2]);
      total.push_back(0.5 * d.back());
    }
    expect_close(loss.values(), losses, 1e-6, "loss", 1e-6);
    expect_close(dt.values(), along, 1e-6, "gradient of t", 1e-3);
    expect_close(db.values(), total, 1e-6, "gradient of b", 1e-3);
    Doubles gradient = differences(x, [&](const Doubles& at) { return pair_loss(at, -1); });
    gradient.resize(size_t(kRows * kColumns));
    for (double& g : gradient) g *= 0.5;
    expect_close(cosines.values(), gradient, 1e-6, "gradient", 1e-3);
  }
}

TEST(PairSigmoid, ExtremeLogitsStayFinite) {
  TestQueue queue;
  Tensor cosines(std::vector<float>{1, -1, -1, 1}), t(std::vector<float>{8}),
      b(std::vector<float>{0}), loss(2), dt(2), db(2);
  run(PairSigmoid{.cosines = cosines,
                  .t = t,
                  .b = b,
                  .loss = loss,
                  .dt = dt,
                  .db = db,
                  .rows = 2,
                  .columns = 2},
      queue);
  for (float v : joined({loss.values(), cosines.values(), dt.values(), db.values()}))
    EXPECT_EQ(v, 0) << "all pairs are right";
  Tensor wrong(std::vector<float>{-1, 1, 1, -1});
  run(
      PairSigmoid{
          .cosines = wrong, .t = t, .b = b, .loss = loss, .dt = dt, .rows = 2, .columns = 2},
      queue);
  for (float v : loss.values()) EXPECT_NEAR(v, 2 * std::exp(8.0), 1e-3);
  for (float v : dt.values()) EXPECT_NEAR(v, 2 * std::exp(8.0), 1e-3);
}

TEST(PairSigmoid, LossScaleIsAnotherFactorAndResultsMayBeAbsent) {
  TestQueue queue;
  auto gradient = [&](View scale, View dt, View db) {
    Tensor cosines(normals(kRows * kColumns, "cosines", 0.4)), t(std::vector<float>{1}),
        b(std::vector<float>{-1});
    run(PairSigmoid{.cosines = cosines,
                    .t = t,
                    .b = b,
                    .dt = dt,
                    .db = db,
                    .loss_scale = scale,
                    .rows = kRows,
                    .columns = kColumns,
                    .first = kFirst},
        queue);
    return cosines.values();
  };
  Tensor by(std::vector<float>{4}), dt(kRows), db(kRows), scaled_dt(kRows), scaled_db(kRows);
  const std::vector<float> one = gradient({}, dt, db), other = gradient(by, scaled_dt, scaled_db);
  for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(other[i], 4 * one[i]);
  for (int64_t r = 0; r < kRows; ++r) {
    EXPECT_EQ(scaled_dt[r], 4 * dt[r]);
    EXPECT_EQ(scaled_db[r], 4 * db[r]);
  }
  EXPECT_EQ(gradient({}, {}, {}), one);
}

TEST(PairSigmoid, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        Tensor cosines(normals(90 * 120, "cosines", 0.4)), t(std::vector<float>{2}),
            b(std::vector<float>{-5}), loss(90), dt(90), db(90);
        run(PairSigmoid{.cosines = cosines,
                        .t = t,
                        .b = b,
                        .loss = loss,
                        .dt = dt,
                        .db = db,
                        .rows = 90,
                        .columns = 120,
                        .first = 30},
            queue);
        return joined({loss.values(), cosines.values(), dt.values(), db.values()});
      },
      false);
}

TEST(PairSigmoid, Checks) {
  Tensor cosines(12), t(1), b(1), dt(3);
  PairSigmoid a{.cosines = cosines, .t = t, .b = b, .dt = dt, .rows = 3, .columns = 4};
  check(a);
  EXPECT_EQ(cost(a).bytes, 96);
  a.first = 2;
  EXPECT_ERROR(check(a), "pair_sigmoid", "of 4");
  a.first = 1;
  a.db = t;
  EXPECT_ERROR(check(a), "db");
}

}  // namespace
