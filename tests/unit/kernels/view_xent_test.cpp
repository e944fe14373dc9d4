// SPDX-License-Identifier: Apache-2.0
// Tests the cross-entropy between views, and centred soft targets, against their definitions.
#include "kernels/view_xent.hpp"

#include "loss_rig.hpp"

COVERS(soft_targets);
COVERS(view_xent);

namespace {

using namespace kernels;
using namespace rig;

struct ViewCase {
  int64_t examples, views, columns;
  std::vector<int32_t> assigned;  // views of targets
};
constexpr double kWarmth = 0.3, kShare = 0.5;

double log_softmax_at(const double* x, int64_t n, double temperature, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp((x[i] - x[k]) / temperature);
  return -std::log(sum);
}

// Returns the loss of each example.
Doubles view_losses(const Doubles& scores, const Doubles& targets, const ViewCase& c) {
  Doubles out;
  const int64_t count = int64_t(c.assigned.size());
  for (int64_t b = 0; b < c.examples; ++b) {
    double loss = 0;
    int64_t pairs = 0;
    for (int64_t v = 0; v < c.views; ++v)
      for (int64_t t = 0; t < count; ++t) {
        if (c.assigned[size_t(t)] == v) continue;
        ++pairs;
        for (int64_t k = 0; k < c.columns; ++k)
          loss -=
              targets[size_t((b * count + t) * c.columns + k)] *
              log_softmax_at(scores.data() + (b * c.views + v) * c.columns, c.columns, kWarmth, k);
      }
    out.push_back(kShare * loss / double(pairs));
  }
  return out;
}

ViewXent view_arguments(const ViewCase& c, View loss, View gradient, View scores, View targets) {
  ViewXent a{.loss = loss,
             .gradient = gradient,
             .scores = scores,
             .targets = targets,
             .examples = c.examples,
             .views = c.views,
             .columns = c.columns,
             .target_count = int64_t(c.assigned.size()),
             .temperature = float(kWarmth),
             .factor = float(kShare),
             .scale = 0.25f};
  std::copy(c.assigned.begin(), c.assigned.end(), a.views_of_targets.begin());
  return a;
}

std::vector<float> shares_of(int64_t count, const char* name) {
  std::vector<float> out = normals(count, name);
  for (float& v : out) v = 0.3f * v * v;  // need not add up to 1
  return out;
}

TEST(ViewXent, AgreesWithDefinitionAndDerivative) {
  for (const ViewCase& c :
       {ViewCase{1, 2, 1, {0}}, {3, 2, 5, {0, 1}}, {2, 5, 7, {1}}, {2, 6, 19, {0, 3, 5}}}) {
    TestQueue queue(2);
    const int64_t n = c.examples * c.views * c.columns;
    Tensor scores(normals(n, "scores"), 1), gradient(n, 2), loss(c.examples),
        targets(shares_of(c.examples * int64_t(c.assigned.size()) * c.columns, "targets"));
    ViewXent a = view_arguments(c, loss, gradient, scores, targets);
    run(a, queue);
    const Doubles x = doubles(scores.values()), t = doubles(targets.values());
    Doubles want = view_losses(x, t, c);
    expect_close(loss.values(), want, 1e-6, "loss", 1e-9);
    expect_close(gradient.values(),
                 differences(x,
                             [&](const Doubles& at) {
                               double sum = 0;
                               for (double l : view_losses(at, t, c)) sum += 0.25 * l;
                               return sum;
                             }),
                 2e-6, "gradient", 0.01);
    a.loss_write = Write::accumulate;
    a.gradient = scores;  // in place
    run(a, queue);
    for (double& w : want) w *= 2;
    expect_close(loss.values(), want, 1e-6, "added loss", 1e-9);
    EXPECT_TRUE(same_bits(scores.values(), gradient.values()));
  }
}

TEST(ViewXent, SoftTargetsAreASoftmaxOfWhatIsAboveTheCentre) {
  TestQueue queue(2);
  Tensor x(normals(5 * 40, "x")), centre(normals(40, "centre")), y(200);
  run(SoftTargets{.y = y, .x = x, .centre = centre, .rows = 5, .columns = 40, .temperature = 0.2f},
      queue);
  Doubles want;
  for (int64_t r = 0; r < 5; ++r) {
    Doubles row;
    for (int64_t k = 0; k < 40; ++k) row.push_back(double(x[r * 40 + k]) - double(centre[k]));
    for (int64_t k = 0; k < 40; ++k)
      want.push_back(std::exp(log_softmax_at(row.data(), 40, double(0.2f), k)));
  }
  expect_close(y.values(), want, 1e-6, "targets");
}

TEST(ViewXent, HugeScoresStayFinite) {
  TestQueue queue;
  const ViewCase c{1, 2, 3, {0, 1}};
  Tensor scores(std::vector<float>{1e30f, -1e30f, 0, 5, 1e30f, -7}), loss(1), gradient(6),
      targets(std::vector<float>{1, 0, 0, 1, 0, 0}), centre(std::vector<float>{1, 2, 3}), y(6);
  run(view_arguments(c, loss, gradient, scores, targets), queue);
  run(SoftTargets{.y = y, .x = scores, .centre = centre, .rows = 2, .columns = 3}, queue);
  for (float v : joined({gradient.values(), y.values()})) EXPECT_TRUE(std::isfinite(v));
}

TEST(ViewXent, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        const ViewCase c{20, 4, 300, {0, 1}};
        Tensor scores(normals(20 * 4 * 300, "scores")), loss(20), centre(normals(300, "c")),
            targets(normals(20 * 2 * 300, "targets"));
        run(SoftTargets{.y = targets, .x = targets, .centre = centre, .rows = 40, .columns = 300},
            queue);
        run(view_arguments(c, loss, scores, scores, targets), queue);
        return joined({loss.values(), scores.values()});
      },
      false);
}

TEST(ViewXent, Checks) {
  Tensor scores(8), loss(2), targets(4);
  ViewXent a = view_arguments({2, 1, 2, {0}}, loss, {}, scores.view().slice(0, 4), targets);
  EXPECT_ERROR(check(a), "view_xent", "no view has a target of another view");
  a = view_arguments({2, 2, 2, {0}}, loss, {}, scores, targets);
  check(a);
  EXPECT_EQ(cost(a).bytes, 32 + 16);
  a.temperature = 0;
  EXPECT_ERROR(check(a), "temperature is 0");
}

}  // namespace
