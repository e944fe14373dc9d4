// SPDX-License-Identifier: Apache-2.0
// Muon beside its published formula in double.
#include "optim/muon.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optim/orthogonal.hpp"
#include "rig.hpp"

namespace {

using Matrix = std::vector<double>;

Matrix random_matrix(int64_t count, const std::string& name) {
  Matrix m(static_cast<size_t>(count));
  base::Stream stream(5, name);
  for (size_t i = 0; i < m.size(); ++i) m[i] = stream.normal(i);
  return m;
}

Matrix transposed(const Matrix& x, int64_t rows, int64_t columns) {
  Matrix out(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[size_t(c * rows + r)] = x[size_t(r * columns + c)];
  return out;
}

Matrix times(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k) {
  Matrix out(size_t(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < n; ++j)
        out[size_t(i * n + j)] += a[size_t(i * k + l)] * b[size_t(l * n + j)];
  return out;
}

// The published steps, for a matrix [rows, columns] of at most as many rows as columns.
Matrix published(Matrix x, int64_t rows, int64_t columns, int64_t steps) {
  if (rows > columns)
    return transposed(published(transposed(x, rows, columns), columns, rows, steps), columns, rows);
  double norm = 0;
  for (const double v : x) norm += v * v;
  for (double& v : x) v /= std::sqrt(norm) + 1e-7;
  for (int64_t step = 0; step < steps; ++step) {
    const Matrix a = times(x, transposed(x, rows, columns), rows, rows, columns);
    const Matrix a2 = times(a, a, rows, rows, rows);
    Matrix b(a.size());
    for (size_t i = 0; i < a.size(); ++i) b[i] = -4.7750 * a[i] + 2.0315 * a2[i];
    const Matrix more = times(b, x, rows, columns, rows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + more[i];
  }
  return x;
}

TEST(NewtonSchulz, FollowsThePublishedSteps) {
  device::Ledger ledger;
  const optim::NewtonSchulz newton_schulz(rig::default_kind(), ledger, 40 * 100, 40);
  device::Queue queue(rig::default_kind());
  for (const auto& [rows, columns] : {std::pair{24, 100}, {100, 40}, {40, 40}, {1, 9}, {9, 1}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns);
    const Matrix x = random_matrix(rows * columns, "x");
    std::vector<float> values(x.begin(), x.end());
    device::Buffer memory(rig::default_kind(), ledger, "test", int64_t(values.size()) * 4);
    const device::View view = memory.view(device::DType::f32).slice(0, int64_t(values.size()));
    device::upload(view, values.data(), queue);
    newton_schulz.run(view, rows, columns, 5, queue);
    device::download(values.data(), view, queue);
    const Matrix expected = published(x, rows, columns, 5);
    Matrix got;
    for (size_t i = 0; i < expected.size(); ++i) {
      got.push_back(double(values[i]) * optim::NewtonSchulz::factor(5));
      ASSERT_NEAR(got[i], expected[i], 2e-5) << i;
    }
    // All directions have nearly the same length.
    const int64_t side = std::min(rows, columns), other = std::max(rows, columns);
    const Matrix wide = rows > columns ? transposed(got, rows, columns) : got;
    const Matrix square = times(wide, transposed(wide, side, other), side, side, other);
    for (int64_t i = 0; i < side; ++i) {
      EXPECT_GT(square[size_t(i * side + i)], 0.4);
      EXPECT_LT(square[size_t(i * side + i)], 1.5);
    }
  }
}

TEST(NewtonSchulz, ZerosStay) {
  device::Ledger ledger;
  const optim::NewtonSchulz newton_schulz(rig::default_kind(), ledger, 12, 3);
  device::Queue queue(rig::default_kind());
  std::vector<float> values(12, 0.0f);
  device::Buffer memory(rig::default_kind(), ledger, "test", 48);
  const device::View view = memory.view(device::DType::f32).slice(0, 12);
  device::upload(view, values.data(), queue);
  newton_schulz.run(view, 3, 4, 5, queue);
  device::download(values.data(), view, queue);
  EXPECT_EQ(values, std::vector<float>(12, 0.0f));
}

shard::Parameter with_fans(std::vector<int64_t> shape, int64_t in, int64_t out) {
  shard::Parameter p = rig::parameter("w", std::move(shape));
  p.init.fan_in = in;
  p.init.fan_out = out;
  return p;
}

TEST(MatrixShape, JoinsAxesByTheFans) {
  auto expect = [](const shard::Parameter& p, int64_t rows, int64_t columns, int64_t in,
                   int64_t out) {
    const optim::MatrixShape shape = optim::matrix_shape(p);
    EXPECT_EQ(shape.rows, rows);
    EXPECT_EQ(shape.columns, columns);
    EXPECT_EQ(shape.in, in);
    EXPECT_EQ(shape.out, out);
  };
  expect(with_fans({36, 3, 30}, 36, 90), 36, 90, 36, 90);            // query
  expect(with_fans({3, 30, 36}, 90, 36), 90, 36, 90, 36);            // out of attention
  expect(with_fans({3, 3, 8, 20}, 72, 20), 72, 20, 72, 20);          // a convolution's kernel
  expect(with_fans({20, 8, 3, 3}, 72, 180), 20, 72, 72, 20);         // a weight in PyTorch's order
  expect(with_fans({48, 12}, 12, 48), 48, 12, 12, 48);               // a product in that order
  expect(rig::parameter("embedding", {301, 40}), 301, 40, 301, 40);  // no fans
}

// W := W (1 - rate decay) - rate sqrt(max(1, out/in)) X, with sums of gradients as torch.optim.Muon
// has them but for a factor, which X does not see.
TEST(Muon, FollowsThePublishedFormula) {
  const optim::MuonOptions defaults;
  EXPECT_EQ(defaults.momentum, 0.95);
  EXPECT_EQ(defaults.steps, 5);
  EXPECT_TRUE(defaults.nesterov);
  for (const bool nesterov : {true, false})
    for (const auto scaling :
         {optim::MuonOptions::Scaling::original, optim::MuonOptions::Scaling::match_adamw,
          optim::MuonOptions::Scaling::none}) {
      auto method = std::make_shared<optim::MuonOptions>();
      method->nesterov = nesterov;
      method->scaling = scaling;
      rig::Job s;
      s.parameters = {with_fans({20, 4, 20}, 20, 80)};
      s.options.kind = "muon";
      s.options.method = method;
      s.options.learning_rate = 0.02;
      s.options.weight_decay = 0.1;
      s.options.decay_form = optim::DecayForm::rate;
      s.policies = {{.decay_scale = 1}};
      rig::Rig r(s);
      Matrix w = random_matrix(1600, "w"), buffer(1600);
      r.set_weights({{"w", rig::Tensor(w.begin(), w.end())}});
      const double scale = scaling == optim::MuonOptions::Scaling::original ? 2
                           : scaling == optim::MuonOptions::Scaling::match_adamw
                               ? 0.2 * std::sqrt(80)
                               : 1;
      for (int64_t step = 1; step <= 3; ++step) {
        const Matrix g = random_matrix(1600, "g" + std::to_string(step));
        r.step(step, {{"w", rig::Tensor(g.begin(), g.end())}});
        Matrix direction(1600);
        for (size_t i = 0; i < g.size(); ++i) {
          buffer[i] = 0.95 * buffer[i] + 0.05 * g[i];
          direction[i] = nesterov ? 0.05 * g[i] + 0.95 * buffer[i] : buffer[i];
        }
        const Matrix x = published(direction, 20, 80, 5);
        for (size_t i = 0; i < w.size(); ++i) w[i] = w[i] * (1 - 0.02 * 0.1) - 0.02 * scale * x[i];
      }
      const rig::Tensor after = r.weights()["w"];
      for (size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(double(after[i]), w[i], 5e-6) << i;
    }
}

TEST(Muon, RefusesVectors) {
  optim::OptimizerOptions options;
  options.kind = "muon";
  options.method = std::make_shared<optim::MuonOptions>();
  const std::vector<shard::Parameter> parameters{rig::parameter("a/kernel", {4, 6}),
                                                 rig::parameter("a/bias", {6})};
  optim::Policies found = optim::resolve_policies(options, {}, parameters);
  ASSERT_EQ(found.problems.size(), 1u);
  EXPECT_EQ(found.problems[0].key, "optimizer.kind");
  EXPECT_NE(found.problems[0].text.find("a/bias has 1 axis"), std::string::npos)
      << found.problems[0].text;
  options.rules = {{.match = ".*kernel"}, {.match = ".*", .kind = "adamw", .method = nullptr}};
  options.rules[1].method = options.method;
  found = optim::resolve_policies(options, {}, parameters);
  ASSERT_EQ(found.problems.size(), 1u);
  EXPECT_EQ(found.problems[0].key, "optimizer.rule.1.kind");
}

}  // namespace
