// SPDX-License-Identifier: Apache-2.0
// Tests InfoNCE over views against its definition and numerical derivative: two and more views,
// groups, parts of the rows, extreme logits.
#include "kernels/contrastive.hpp"

#include "loss_rig.hpp"

COVERS(contrastive_terms);
COVERS(contrastive_gradient);

namespace {

using namespace kernels;
using namespace rig;

struct PairCase {
  int64_t examples, views, group;
  int64_t rows() const { return examples * views; }
  std::string text() const {
    return fmt::format("{} examples, {} views, groups of {}", examples, views, group);
  }
};

// Returns the sum of the terms of one example, or of all (-1), for the symmetric logits whose upper
// triangle is given.
double pair_loss(const Doubles& upper, const PairCase& c, int64_t example) {
  const int64_t n = c.rows();
  auto at = [&](int64_t a, int64_t b) {
    return std::exp(upper[size_t(std::min(a, b) * n + std::max(a, b))]);
  };
  double loss = 0;
  for (int64_t a = 0; a < n; ++a) {
    if (example >= 0 && a / c.views != example) continue;
    double negatives = 0;
    for (int64_t b = 0; b < n; ++b) {
      const bool together = c.group == 0 || a / c.views / c.group == b / c.views / c.group;
      if (a / c.views != b / c.views && together) negatives += at(a, b);
    }
    for (int64_t p = 0; p < n; ++p)
      if (p != a && p / c.views == a / c.views) loss -= std::log(at(a, p) / (at(a, p) + negatives));
  }
  return loss;
}

std::vector<float> symmetric(const PairCase& c, double scale) {
  const int64_t n = c.rows();
  std::vector<float> x = normals(n * n, "logits", scale);
  for (int64_t a = 0; a < n; ++a)
    for (int64_t b = 0; b < a; ++b) x[size_t(a * n + b)] = x[size_t(b * n + a)];
  return x;
}

// Runs both ops for the rows of examples [first, first + count).
void run_pairs(const PairCase& c, int64_t first, int64_t count, View logits, View terms, View all,
               View loss, TestQueue& queue) {
  const int64_t n = c.rows(), begin = first * c.views, rows = count * c.views;
  const ContrastiveShape shape{
      .rows = rows, .columns = n, .first = begin, .views = c.views, .group = c.group};
  if (!loss.none())
    run(ContrastiveTerms{.terms = terms.slice(2 * begin, 2 * rows),
                         .loss = loss.slice(first, count),
                         .logits = logits.slice(begin * n, rows * n),
                         .shape = shape},
        queue);
  if (!all.none())
    run(ContrastiveGradient{.logits = logits.slice(begin * n, rows * n),
                            .terms = all,
                            .shape = shape,
                            .scale = 0.5f},
        queue);
}

TEST(Contrastive, AgreesWithDefinitionAndDerivative) {
  for (const PairCase& c :
       {PairCase{1, 2, 0}, {2, 2, 0}, {5, 2, 0}, {4, 3, 0}, {4, 2, 2}, {6, 4, 3}, {5, 2, 2}}) {
    SCOPED_TRACE(c.text());
    TestQueue queue(2);
    const int64_t n = c.rows(), half = (c.examples + 1) / 2;
    Tensor logits(symmetric(c, 1.5)), loss(c.examples);
    const Doubles x = doubles(logits.values());
    Doubles terms(size_t(2 * n));
    for (auto [first, count] : {std::pair{int64_t(0), half}, {half, c.examples - half}})
      if (count > 0) run_pairs(c, first, count, logits, view_of(terms), {}, loss, queue);
    Doubles want;
    for (int64_t i = 0; i < c.examples; ++i)
      want.push_back(pair_loss(x, c, i) / double(c.views * (c.views - 1)));
    expect_close(loss.values(), want, 1e-6, "loss", 1e-6);
    for (auto [first, count] : {std::pair{int64_t(0), half}, {half, c.examples - half}})
      if (count > 0) run_pairs(c, first, count, logits, {}, view_of(terms), {}, queue);
    const Doubles upper = differences(x, [&](const Doubles& at) { return pair_loss(at, c, -1); });
    Doubles gradient(size_t(n * n));
    for (int64_t a = 0; a < n; ++a)
      for (int64_t b = 0; b < n; ++b)
        gradient[size_t(a * n + b)] =
            a == b ? 0 : 0.5 * upper[size_t(std::min(a, b) * n + std::max(a, b))];
    expect_close(logits.values(), gradient, 1e-6, "gradient", 1e-3);
  }
}

TEST(Contrastive, ColdLogitsStayFinite) {
  const PairCase c{3, 2, 0};
  TestQueue queue;
  Tensor logits(symmetric(c, 200)), loss(3), scale(std::vector<float>{8});
  Doubles terms(12);
  run_pairs(c, 0, 3, logits, view_of(terms), {}, loss, queue);
  run_pairs(c, 0, 3, logits, {}, view_of(terms), {}, queue);
  for (float v : joined({loss.values(), logits.values()})) EXPECT_TRUE(std::isfinite(v));
}

TEST(Contrastive, LossScaleIsAnotherFactor) {
  const PairCase c{4, 2, 0};
  TestQueue queue;
  Tensor one(symmetric(c, 1)), other(symmetric(c, 1)), loss(4), by(std::vector<float>{4});
  Doubles terms(16);
  run_pairs(c, 0, 4, one, view_of(terms), view_of(terms), loss, queue);
  run(ContrastiveGradient{.logits = other,
                          .terms = view_of(terms),
                          .loss_scale = by,
                          .shape = {.rows = 8, .columns = 8, .views = 2},
                          .scale = 0.5f},
      queue);
  for (int64_t i = 0; i < 64; ++i) ASSERT_EQ(other[i], 4 * one[i]);
}

TEST(Contrastive, SameBitsForAllThreads) {
  expect_same_bits(
      [](TestQueue& queue) {
        const PairCase c{70, 2, 0};
        Tensor logits(symmetric(c, 1)), loss(70);
        Doubles terms(280);
        run_pairs(c, 0, 70, logits, view_of(terms), view_of(terms), loss, queue);
        return joined({loss.values(), logits.values()});
      },
      false);
}

TEST(Contrastive, Checks) {
  Tensor logits(16), loss(2);
  Doubles terms(8);
  ContrastiveTerms a{.terms = view_of(terms),
                     .loss = loss,
                     .logits = logits,
                     .shape = {.rows = 4, .columns = 4, .views = 2}};
  check(a);
  EXPECT_EQ(cost(a).bytes, 64);
  a.shape.first = 2;
  EXPECT_ERROR(check(a), "contrastive_terms", "of 4");
  a.shape.first = 0;
  a.shape.views = 3;
  EXPECT_ERROR(check(a), "not whole examples of 3 views");
}

}  // namespace
