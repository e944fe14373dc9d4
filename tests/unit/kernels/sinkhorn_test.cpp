// SPDX-License-Identifier: Apache-2.0
// Tests Sinkhorn's assignment, written out in double, in one piece and in slices whose totals are
// added: infinite scores, prototypes without a sample, hard targets.
#include "kernels/sinkhorn.hpp"

#include "loss_rig.hpp"

COVERS(column_totals);
COVERS(finite_maximum);
COVERS(sinkhorn_start);
COVERS(sinkhorn_scale);

namespace {

using namespace kernels;
using namespace rig;

struct Assignment {
  int64_t rows, columns, rounds;
  bool wide = false;  // q is f64
  bool hard = false;
  int64_t targets = rows;  // rows that are targets
  int64_t slices = 1;
};
constexpr double kEpsilon = 0.5;

Doubles assigned_reference(const std::vector<float>& scores, const Assignment& a) {
  double top = -1e300;
  for (float s : scores)
    if (std::isfinite(s)) top = std::max(top, double(s));
  Doubles q;
  double all = 0;
  for (float s : scores) {
    q.push_back(std::exp((std::min(double(s), top) - top) / kEpsilon));
    all += q.back();
  }
  for (double& v : q) v /= all;
  auto at = [&](int64_t r, int64_t c) -> double& { return q[size_t(r * a.columns + c)]; };
  auto column_sum = [&](int64_t c) {
    double sum = 0;
    for (int64_t r = 0; r < a.rows; ++r) sum += at(r, c);
    return sum;
  };
  auto row_sum = [&](int64_t r) {
    double sum = 0;
    for (int64_t c = 0; c < a.columns; ++c) sum += at(r, c);
    return sum;
  };
  for (int64_t round = 0; round < a.rounds; ++round) {
    bool empty = false;
    for (int64_t c = 0; c < a.columns; ++c) empty = empty || column_sum(c) == 0;
    for (double& v : q) v += empty ? 1e-12 : 0;
    for (int64_t c = 0; c < a.columns; ++c) {
      const double sum = column_sum(c);
      for (int64_t r = 0; r < a.rows; ++r) at(r, c) /= double(a.columns) * sum;
    }
    for (int64_t r = 0; r < a.rows; ++r) {
      const double sum = row_sum(r);
      for (int64_t c = 0; c < a.columns; ++c) at(r, c) /= double(a.rows) * sum;
    }
  }
  Doubles out;
  for (int64_t r = 0; r < a.targets; ++r) {
    const double sum = row_sum(r);
    int64_t best = 0;
    for (int64_t c = 1; c < a.columns; ++c)
      if (at(r, c) > at(r, best)) best = c;
    for (int64_t c = 0; c < a.columns; ++c)
      out.push_back(a.hard ? double(c == best) : at(r, c) / sum);
  }
  return out;
}

// Scores of which row r begins at r * (columns + 2).
std::vector<float> gapped(const std::vector<float>& scores, int64_t columns) {
  std::vector<float> out;
  for (size_t r = 0; r < scores.size(); r += size_t(columns)) {
    out.insert(out.end(), scores.begin() + int64_t(r), scores.begin() + int64_t(r) + columns);
    out.insert(out.end(), 2, 1e9f);
  }
  return out;
}

// Runs the ops in slices; targets have two more columns in memory.
std::vector<float> run_assignment(const std::vector<float>& scores, const Assignment& a,
                                  TestQueue& queue) {
  Tensor s(gapped(scores, a.columns)), maxima(a.slices), targets(a.targets * (a.columns + 2));
  std::fill(targets.data(), targets.data() + targets.view().count, -1.0f);
  const int64_t each = a.rows / a.slices, stride = a.columns + 2;
  std::vector<float> q32(scores.size());
  Doubles q64(scores.size()), totals(size_t(a.columns)), part(size_t(a.columns));
  const View q = a.wide ? view_of(q64) : device::view(q32.data(), int64_t(q32.size()));
  auto rows_of = [&](int64_t j) { return q.slice(j * each * a.columns, each * a.columns); };
  auto scores_of = [&](int64_t j) { return s.view().slice(j * each * stride, each * stride - 2); };
  for (int64_t j = 0; j < a.slices; ++j)
    run(FiniteMaximum{.maximum = maxima.view().slice(j, 1),
                      .x = scores_of(j),
                      .rows = each,
                      .columns = a.columns,
                      .stride = stride},
        queue);
  for (int64_t j = 0; j < a.slices; ++j)
    run(SinkhornStart{.q = rows_of(j),
                      .scores = scores_of(j),
                      .maxima = maxima,
                      .rows = each,
                      .columns = a.columns,
                      .stride = stride,
                      .epsilon = float(kEpsilon)},
        queue);
  for (int64_t round = 0; round < std::max<int64_t>(1, a.rounds); ++round) {
    std::fill(totals.begin(), totals.end(), 0.0);
    for (int64_t j = 0; j < a.slices; ++j) {
      run(
          ColumnTotals{
              .totals = view_of(part), .x = rows_of(j), .rows = each, .columns = a.columns},
          queue);
      for (size_t c = 0; c < totals.size(); ++c) totals[c] += part[c];
    }
    for (int64_t j = 0; j < a.slices; ++j) {
      SinkhornScale scale{.q = rows_of(j),
                          .rows = each,
                          .columns = a.columns,
                          .samples = a.rows,
                          .first = round == 0,
                          .hard = a.hard};
      if (a.rounds > 0) scale.totals = view_of(totals);
      if (round + 1 >= a.rounds) {
        scale.target_rows = std::min(each, a.targets - j * each);
        scale.target_stride = stride;
        scale.targets = targets.view().slice(j * each * stride, scale.target_rows * stride - 2);
      }
      run(scale, queue);
    }
  }
  std::vector<float> out;
  for (int64_t r = 0; r < a.targets; ++r)
    for (int64_t c = 0; c < a.columns; ++c) out.push_back(targets[r * stride + c]);
  EXPECT_EQ(targets[targets.view().count - 1], -1) << "between the rows nothing is written";
  return out;
}

TEST(Sinkhorn, AgreesWithReference) {
  for (bool wide : {false, true})
    for (const Assignment& a : {Assignment{1, 1, 1, wide},
                                {4, 3, 0, wide},
                                {6, 9, 1, wide},
                                {12, 7, 3, wide},
                                {12, 7, 3, wide, true},
                                {12, 7, 3, wide, false, 5},
                                {12, 7, 10, wide, false, 12, 4},
                                {40, 300, 3, wide, false, 40, 2}}) {
      SCOPED_TRACE(fmt::format("{} x {}, {} rounds, f64 {}", a.rows, a.columns, a.rounds, wide));
      TestQueue queue(2);
      const std::vector<float> scores = normals(a.rows * a.columns, "scores");
      expect_close(run_assignment(scores, a, queue), assigned_reference(scores, a), 2e-6,
                   "targets");
    }
}

TEST(Sinkhorn, PrototypesWithoutSamplesAndInfiniteScores) {
  TestQueue queue;
  std::vector<float> scores = normals(6 * 5, "scores");
  for (int64_t r = 0; r < 6; ++r) scores[size_t(r * 5 + 2)] = -INFINITY;
  for (int64_t rounds : {1, 3}) {
    const Assignment a{6, 5, rounds, false, false, 6, 2};
    expect_close(run_assignment(scores, a, queue), assigned_reference(scores, a), 2e-6, "empty");
  }
  scores = normals(6 * 5, "scores");
  scores[7] = INFINITY;
  const Assignment a{6, 5, 3};
  expect_close(run_assignment(scores, a, queue), assigned_reference(scores, a), 2e-6, "infinite");
}

TEST(Sinkhorn, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        return run_assignment(normals(120 * 150, "scores"), {120, 150, 3}, queue);
      },
      false);
}

TEST(Sinkhorn, Checks) {
  Tensor q(12), scores(12), maxima(1), targets(8);
  Doubles totals(4);
  check(SinkhornStart{.q = q, .scores = scores, .maxima = maxima, .rows = 3, .columns = 4});
  EXPECT_ERROR(
      check(SinkhornStart{
          .q = q, .scores = scores, .maxima = maxima, .rows = 3, .columns = 4, .epsilon = 0}),
      "sinkhorn_start", "epsilon 0");
  SinkhornScale a{.q = q,
                  .totals = view_of(totals),
                  .targets = targets,
                  .rows = 3,
                  .columns = 4,
                  .samples = 3,
                  .target_rows = 2};
  check(a);
  EXPECT_EQ(cost(a).bytes, 4 * 20);
  a.target_rows = 4;
  EXPECT_ERROR(check(a), "4 of 3 rows are targets");
}

}  // namespace
