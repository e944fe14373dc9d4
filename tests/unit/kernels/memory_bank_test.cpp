// SPDX-License-Identifier: Apache-2.0
// Tests the states of losses: the queue, the moving mean, the memory bank and its loss.
#include "kernels/memory_bank.hpp"

#include "kernels/keep_rows.hpp"
#include "kernels/loss_state.hpp"
#include "kernels/nce_terms.hpp"
#include "loss_rig.hpp"

COVERS(moving_mean);
COVERS(queue_places);
COVERS(keep_rows);
COVERS(bank_scores);
COVERS(bank_gradient);
COVERS(bank_update);
COVERS(nce_totals);
COVERS(nce_constant);
COVERS(nce_terms);

namespace {

using namespace kernels;
using namespace rig;

TEST(LossState, MovingMean) {
  TestQueue queue;
  Tensor mean(std::vector<float>{1, -2, 0});
  Doubles totals{8, 8, 2};
  run(MovingMean{.mean = mean, .totals = view_of(totals), .count = 4, .momentum = 0.75f}, queue);
  expect_close(mean.values(), {1.25, -1, 0.125}, 1e-6, "mean");
}

TEST(LossState, QueueWrapsAround) {
  TestQueue queue;
  Tensor place(std::vector<float>{3});
  std::vector<int32_t> index(3);
  const View places = device::view(index.data(), 3);
  run(QueuePlaces{.index = places, .place = place, .size = 5, .count = 3}, queue);
  EXPECT_EQ(index, (std::vector<int32_t>{3, 4, 0}));
  EXPECT_EQ(place[0], 1);
  EXPECT_ERROR(check(QueuePlaces{.index = places, .place = place, .size = 2, .count = 3}),
               "queue_places", "3 rows do not fit a queue of 2");
}

// A rank keeps elements 3 to 7 of 5 rows of 2; rows 1 and 3 were written, row 3 by two examples.
TEST(LossState, AppliedRowsAreKept) {
  TestQueue queue(2);
  Tensor kept(std::vector<float>{3, 4, 5, 6, 7}), before(std::vector<float>{6, 7, 2, 3, 6, 7}),
      state(std::vector<float>{0, 1, -2, -3, 4, 5, -6, -7, 8, 9}),
      decided(std::vector<float>{1, 1, 1});
  std::vector<int32_t> index{3, 1, 3};
  const KeepRows op{.kept = kept,
                    .state = state,
                    .before = before,
                    .index = device::view(index.data(), 3),
                    .decided = decided,
                    .rows = 3,
                    .width = 2,
                    .state_rows = 5,
                    .first = 3};
  run(op, queue);
  EXPECT_EQ(kept.values(), (std::vector<float>{-3, 4, 5, -6, -7}));
  EXPECT_EQ(state.values(), (std::vector<float>{0, 1, -2, -3, 4, 5, -6, -7, 8, 9}));
  KeepRows outside = op;
  outside.first = 6;
  EXPECT_ERROR(check(outside), "keep_rows", "keeps elements 6 to 11 of 10");
}

TEST(LossState, RowsOfAStepThatIsNotAppliedComeBack) {
  TestQueue queue(2);
  Tensor kept(std::vector<float>{3, 4}), before(std::vector<float>{6, 7, 2, 3, 6, 7}),
      state(std::vector<float>{0, 1, -2, -3, 4, 5, -6, -7, 8, 9}),
      decided(std::vector<float>{1, 1, 0});
  std::vector<int32_t> index{3, 1, 3};
  for (const View& part : {kept.view(), View{}}) {
    run(KeepRows{.kept = part,
                 .state = state,
                 .before = before,
                 .index = device::view(index.data(), 3),
                 .decided = decided,
                 .rows = 3,
                 .width = 2,
                 .state_rows = 5,
                 .first = 3},
        queue);
    EXPECT_EQ(state.values(), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_EQ(kept.values(), (std::vector<float>{3, 4}));
  }
}

// Rows of 3 examples against 4 rows of a bank of 9; indices have a stride of 6, scores of 5.
struct BankRig {
  static constexpr int64_t kRows = 3, kColumns = 4, kWidth = 37, kBank = 9;
  Tensor x{normals(kRows * kWidth, "x"), 1}, bank{normals(kBank * kWidth, "bank"), 2};
  std::vector<int32_t> index = integers(kRows * 6, 0, kBank, "index");
  View places() { return device::view(index.data(), kRows * 6 - 2); }
  const float* row(int64_t r, int64_t c) { return bank.data() + index[size_t(r * 6 + c)] * kWidth; }
};

TEST(MemoryBank, ScoresAndGradient) {
  BankRig rig;
  TestQueue queue(2);
  using R = BankRig;
  Tensor scores(std::vector<float>(size_t(R::kRows * 5), -7.0f)), dx(R::kRows * R::kWidth, 3);
  run(BankScores{.scores = scores.view().slice(0, R::kRows * 5 - 1),
                 .x = rig.x,
                 .bank = rig.bank,
                 .index = rig.places(),
                 .rows = R::kRows,
                 .columns = R::kColumns,
                 .width = R::kWidth,
                 .bank_rows = R::kBank,
                 .stride = 5,
                 .index_stride = 6,
                 .scale = 0.5f},
      queue);
  Doubles want, gradient(size_t(R::kRows * R::kWidth));
  std::vector<float> got;
  for (int64_t r = 0; r < R::kRows; ++r) {
    for (int64_t c = 0; c < R::kColumns; ++c) {
      double sum = 0;
      for (int64_t i = 0; i < R::kWidth; ++i)
        sum += double(rig.x[r * R::kWidth + i]) * double(rig.row(r, c)[i]);
      want.push_back(0.5 * sum);
      got.push_back(scores[r * 5 + c]);
      for (int64_t i = 0; i < R::kWidth; ++i)
        gradient[size_t(r * R::kWidth + i)] +=
            0.5 * double(scores[r * 5 + c]) * double(rig.row(r, c)[i]);
    }
    EXPECT_EQ(scores[r * 5 + 4], -7) << "between the rows nothing is written";
  }
  expect_close(got, want, 1e-6, "scores");
  BankGradient back{.dx = dx,
                    .d = scores.view().slice(0, R::kRows * 5 - 1),
                    .bank = rig.bank,
                    .index = rig.places(),
                    .rows = R::kRows,
                    .columns = R::kColumns,
                    .width = R::kWidth,
                    .bank_rows = R::kBank,
                    .stride = 5,
                    .index_stride = 6,
                    .scale = 0.5f};
  run(back, queue);
  expect_close(dx.values(), gradient, 1e-6, "gradient");
  back.write = Write::accumulate;
  run(back, queue);
  for (double& g : gradient) g *= 2;
  expect_close(dx.values(), gradient, 1e-6, "added gradient");
}

TEST(MemoryBank, OwnRowsNeedNoIndex) {
  TestQueue queue;
  Tensor x(std::vector<float>{1, 2, 3, 4}), bank(std::vector<float>{5, 6, 7, 8}), scores(2), dx(4);
  run(BankScores{.scores = scores, .x = x, .bank = bank, .rows = 2, .width = 2, .bank_rows = 2},
      queue);
  EXPECT_EQ(scores.values(), (std::vector<float>{17, 53}));
  run(BankGradient{.dx = dx, .d = scores, .bank = bank, .rows = 2, .width = 2, .bank_rows = 2},
      queue);
  EXPECT_EQ(dx.values(), (std::vector<float>{85, 102, 371, 424}));
  EXPECT_ERROR(check(BankScores{.scores = scores,
                                .x = x,
                                .bank = bank,
                                .rows = 1,
                                .columns = 2,
                                .width = 2,
                                .bank_rows = 2}),
               "bank_scores");
}

TEST(MemoryBank, UpdateTakesTheLastOfEqualPlaces) {
  TestQueue queue(2);
  Tensor bank(std::vector<float>{1, 0, 0, 1, 0, 1}), x(std::vector<float>{9, 9, 0, 2, 3, 0});
  std::vector<int32_t> index{2, 0, 2};
  run(BankUpdate{.bank = bank,
                 .x = x,
                 .index = device::view(index.data(), 3),
                 .count = 3,
                 .width = 2,
                 .bank_rows = 3,
                 .momentum = 0.5f},
      queue);
  const double a = 1 / std::sqrt(5.0), b = 1 / std::sqrt(10.0);
  expect_close(bank.values(), {a, 2 * a, 0, 1, 3 * b, b}, 1e-6, "bank");
}

struct NceCase {
  int64_t rows, columns;
  NceKind kind;
};
constexpr double kSamples = 40, kConstant = 11;

double nce_reference(const double* x, const NceCase& c) {
  if (c.kind == NceKind::softmax) {
    double sum = 0;
    for (int64_t k = 0; k < c.columns; ++k) sum += std::exp(x[k] - x[0]);
    return std::log(sum);
  }
  const double noise = double(c.columns - 1) / kSamples;
  double loss = 0;
  for (int64_t k = 0; k < c.columns; ++k) {
    const double p = std::exp(x[k]) / kConstant;
    loss -= std::log((k == 0 ? p : noise) / (p + noise + 1.1920929e-7));
  }
  return loss;
}

TEST(NceTerms, AgreesWithDefinitionAndDerivative) {
  for (NceKind kind : {NceKind::nce, NceKind::softmax})
    for (const NceCase& c : {NceCase{1, 2, kind}, {5, 11, kind}, {3, 300, kind}}) {
      TestQueue queue(2);
      Tensor logits(normals(c.rows * c.columns, "x", 2), 1), again(logits.values()), loss(c.rows),
          constant(std::vector<float>{float(kConstant)});
      const Doubles x = doubles(logits.values());
      NceTerms a{.logits = logits,
                 .loss = loss,
                 .constant = constant,
                 .rows = c.rows,
                 .columns = c.columns,
                 .samples = kSamples,
                 .kind = kind,
                 .factor = 0.5f,
                 .scale = 2};
      run(a, queue);
      Doubles want;
      for (int64_t r = 0; r < c.rows; ++r)
        want.push_back(0.5 * nce_reference(x.data() + r * c.columns, c));
      expect_close(loss.values(), want, 1e-6, "loss");
      expect_close(logits.values(),
                   differences(x,
                               [&](const Doubles& at) {
                                 double sum = 0;
                                 for (int64_t r = 0; r < c.rows; ++r)
                                   sum += nce_reference(at.data() + r * c.columns, c);
                                 return sum;
                               }),
                   2e-6, "gradient");
      a.logits = again;
      a.loss_write = Write::accumulate;
      run(a, queue);
      for (double& w : want) w *= 2;
      expect_close(loss.values(), want, 1e-6, "added loss");
    }
}

TEST(NceTerms, ConstantIsSetOnce) {
  TestQueue queue(2);
  Tensor logits(normals(6 * 50, "x")), constant(std::vector<float>{-1});
  Doubles total(1);
  double sum = 0;
  for (float v : logits.values()) sum += std::exp(double(v));
  run(NceTotals{.total = view_of(total), .logits = logits, .rows = 6, .columns = 50}, queue);
  EXPECT_NEAR(total[0], sum, 1e-9 * sum);
  const NceConstant set{
      .constant = constant, .total = view_of(total), .count = 300, .samples = kSamples};
  run(set, queue);
  const float first = constant[0];
  EXPECT_NEAR(first, sum / 300 * kSamples, 1e-4);
  total[0] *= 2;
  run(set, queue);
  EXPECT_EQ(constant[0], first);
}

TEST(MemoryBank, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        Tensor x(normals(40 * 64, "x")), bank(normals(500 * 64, "bank")), scores(40 * 30),
            dx(40 * 64), loss(40), constant(std::vector<float>{-1});
        std::vector<int32_t> index = integers(40 * 30, 0, 500, "index");
        const View places = device::view(index.data(), 40 * 30);
        Doubles total(1);
        run(BankScores{.scores = scores,
                       .x = x,
                       .bank = bank,
                       .index = places,
                       .rows = 40,
                       .columns = 30,
                       .width = 64,
                       .bank_rows = 500,
                       .scale = 0.1f},
            queue);
        run(NceTotals{.total = view_of(total), .logits = scores, .rows = 40, .columns = 30}, queue);
        run(
            NceConstant{
                .constant = constant, .total = view_of(total), .count = 1200, .samples = 500},
            queue);
        run(NceTerms{.logits = scores,
                     .loss = loss,
                     .constant = constant,
                     .rows = 40,
                     .columns = 30,
                     .samples = 500},
            queue);
        run(BankGradient{.dx = dx,
                         .d = scores,
                         .bank = bank,
                         .index = places,
                         .rows = 40,
                         .columns = 30,
                         .width = 64,
                         .bank_rows = 500},
            queue);
        run(BankUpdate{.bank = bank,
                       .x = x,
                       .index = places.slice(0, 40),
                       .count = 40,
                       .width = 64,
                       .bank_rows = 500,
                       .momentum = 0.5f},
            queue);
        return joined({loss.values(), dx.values(), bank.values(), constant.values()});
      },
      false);
}

}  // namespace
