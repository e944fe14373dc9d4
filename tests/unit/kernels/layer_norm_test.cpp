// SPDX-License-Identifier: Apache-2.0
#include "kernels/layer_norm.hpp"

#include "narrow_type.hpp"

COVERS(layer_norm_forward);
COVERS(layer_norm_backward);

namespace {

using namespace kernels;
using namespace rig;

constexpr double kEps = 1e-6;

struct NormReference {
  int64_t rows, columns;
  std::vector<double> x, scale, bias, dy;
  std::vector<double> y, mean, rstd, dx, dscale, dbias;

  void forward() {
    y.assign(x.size(), 0);
    mean.assign(size_t(rows), 0);
    rstd.assign(size_t(rows), 0);
    for (int64_t r = 0; r < rows; ++r) {
      double m = 0, var = 0;
      for (int64_t j = 0; j < columns; ++j) m += at(x, r, j) / double(columns);
      for (int64_t j = 0; j < columns; ++j)
        var += (at(x, r, j) - m) * (at(x, r, j) - m) / double(columns);
      mean[size_t(r)] = m;
      rstd[size_t(r)] = 1 / std::sqrt(var + kEps);
      for (int64_t j = 0; j < columns; ++j)
        at(y, r, j) = (at(x, r, j) - m) * rstd[size_t(r)] * scale[size_t(j)] + bias[size_t(j)];
    }
  }
  void backward() {
    dx.assign(x.size(), 0);
    dscale.assign(size_t(columns), 0);
    dbias.assign(size_t(columns), 0);
    for (int64_t r = 0; r < rows; ++r) {
      double g_mean = 0, gz_mean = 0, f = rstd[size_t(r)];
      auto z = [&](int64_t j) { return (at(x, r, j) - mean[size_t(r)]) * f; };
      for (int64_t j = 0; j < columns; ++j) {
        double g = at(dy, r, j) * scale[size_t(j)];
        g_mean += g / double(columns);
        gz_mean += g * z(j) / double(columns);
        dscale[size_t(j)] += at(dy, r, j) * z(j);
        dbias[size_t(j)] += at(dy, r, j);
      }
      for (int64_t j = 0; j < columns; ++j)
        at(dx, r, j) = f * (at(dy, r, j) * scale[size_t(j)] - g_mean - z(j) * gz_mean);
    }
  }
  double loss() {  // backward() computes its gradients
    forward();
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  }
  double& at(std::vector<double>& v, int64_t r, int64_t j) { return v[size_t(r * columns + j)]; }
};

struct Problem {
  int64_t rows, columns;
  Tensor x, scale, bias, dy;
  Problem(int64_t r, int64_t c)
      : rows(r),
        columns(c),
        x(normals(r * c, "x", 1.5, 4), 3),
        scale(normals(c, "scale", 0.3, 1), 1),
        bias(normals(c, "bias")),
        dy(normals(r * c, "dy"), 7) {}
  NormReference reference(bool with_bias = true) {
    NormReference f{rows,
                    columns,
                    doubles(x.values()),
                    doubles(scale.values()),
                    doubles(bias.values()),
                    doubles(dy.values()),
                    {},
                    {},
                    {},
                    {},
                    {},
                    {}};
    if (!with_bias) f.bias.assign(f.bias.size(), 0);
    f.forward();
    f.backward();
    return f;
  }
};

TEST(LayerNorm, ReferenceGradientIsTheDerivative) {
  Problem p(2, 5);
  NormReference f = p.reference();
  auto differences = [&](std::vector<double> NormReference::*input,
                         const std::vector<double>& gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      NormReference g = f;
      double h = 1e-5, middle = (g.*input)[i];
      (g.*input)[i] = middle + h;
      double up = g.loss();
      (g.*input)[i] = middle - h;
      EXPECT_NEAR(gradient[i], (up - g.loss()) / (2 * h), 1e-7);
    }
  };
  differences(&NormReference::x, f.dx);
  differences(&NormReference::scale, f.dscale);
  differences(&NormReference::bias, f.dbias);
}

const std::pair<int64_t, int64_t> kShapes[] = {{0, 5},    {1, 1},     {1, 7},    {3, 8},
                                               {5, 16},   {2, 17},    {4, 384},  {63, 33},
                                               {130, 12}, {400, 100}, {1, 1000}, {5000, 9}};

TEST(LayerNorm, Forward) {
  for_each_table([] {
    for (int threads : thread_counts({1, 2}))
      for (auto [rows, columns] : kShapes)
        for (bool with_bias : {true, false}) {
          SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
          TestQueue queue(threads);
          Problem p(rows, columns);
          NormReference f = p.reference(with_bias);
          Tensor y(rows * columns, 5), mean(rows, 1), rstd(rows, 2);
          LayerNormForward a{.y = y,
                             .mean = mean,
                             .rstd = rstd,
                             .x = p.x,
                             .scale = p.scale,
                             .rows = rows,
                             .columns = columns};
          if (with_bias) a.bias = p.bias;
          run(a, queue);
          // A single column cancels completely: x - mean is 0 up to rounding, times rstd = 1000.
          expect_close(y.values(), f.y, columns < 4 ? 1e-3 : 2e-6, "y");
          expect_close(mean.values(), f.mean, 5e-7, "mean");
          expect_close(rstd.values(), f.rstd, columns < 4 ? 1e-3 : 2e-6, "rstd");
        }
  });
}

TEST(LayerNorm, VarianceDoesNotCancel) {
  TestQueue queue;
  Tensor x(normals(64, "x", 0.01, 1000)), y(64), mean(1), rstd(1),
      scale(std::vector<float>(64, 1.0f));
  run(
      LayerNormForward{
          .y = y, .mean = mean, .rstd = rstd, .x = x, .scale = scale, .rows = 1, .columns = 64},
      queue);
  double m = 0, var = 0;
  for (int j = 0; j < 64; ++j) m += double(x[j]) / 64;
  for (int j = 0; j < 64; ++j) var += (double(x[j]) - m) * (double(x[j]) - m) / 64;
  // The mean is known only to half a unit of 1000, which is 3e-3 standard deviations here.
  EXPECT_NEAR(double(rstd[0]) * std::sqrt(var + kEps), 1, 1e-4);
}

TEST(LayerNorm, Backward) {
  for_each_table([] {
    for (int threads : thread_counts({1, 2}))
      for (auto [rows, columns] : kShapes)
        for (int flags = 0; flags < 32; ++flags) {
          bool want_dx = flags & 1, want_scale = flags & 2, want_bias = flags & 4;
          Write dx_write = flags & 8 ? Write::accumulate : Write::overwrite;
          Write param_write = flags & 16 ? Write::accumulate : Write::overwrite;
          if (rows * columns > 10000 && flags % 8 != 7) continue;
          SCOPED_TRACE(fmt::format("{} x {}, flags {}", rows, columns, flags));
          TestQueue queue(threads);
          Problem p(rows, columns);
          NormReference f = p.reference();
          Tensor mean(std::vector<float>(f.mean.begin(), f.mean.end()));
          Tensor rstd(std::vector<float>(f.rstd.begin(), f.rstd.end()));
          auto start = [](int64_t n, const char* name, Write w) {
            return w == Write::accumulate ? normals(n, name) : std::vector<float>(size_t(n), NAN);
          };
          Tensor dx(start(rows * columns, "dx", dx_write), 1),
              dscale(start(columns, "ds", param_write), 3);
          Tensor dbias(start(columns, "db", param_write), 5);
          auto expected = [](const Tensor& before, const std::vector<double>& gradient, bool wanted,
                             Write w) {
            std::vector<double> e = doubles(before.values());
            for (size_t i = 0; i < e.size() && wanted; ++i)
              e[i] = w == Write::accumulate ? e[i] + gradient[i] : gradient[i];
            return e;
          };
          std::vector<double> e_dx = expected(dx, f.dx, want_dx, dx_write);
          std::vector<double> e_scale = expected(dscale, f.dscale, want_scale, param_write);
          std::vector<double> e_bias = expected(dbias, f.dbias, want_bias, param_write);
          LayerNormBackward a{.dy = p.dy,
                              .x = p.x,
                              .mean = mean,
                              .rstd = rstd,
                              .scale = p.scale,
                              .rows = rows,
                              .columns = columns,
                              .dx_write = dx_write,
                              .param_write = param_write};
          if (want_dx) a.dx = dx;
          if (want_scale) a.dscale = dscale;
          if (want_bias) a.dbias = dbias;
          run(a, queue);
          double root = std::sqrt(double(rows) + 1);  // sums over rows of order-1 terms
          if (columns < 4) continue;                  // rstd = 1000 and dx is pure cancellation
          if (want_dx) expect_close(dx.values(), e_dx, 2e-6, "dx");
          if (want_scale) expect_close(dscale.values(), e_scale, 1.5e-6, "dscale", root);
          if (want_bias) expect_close(dbias.values(), e_bias, 1e-6, "dbias", root);
        }
  });
}

TEST(LayerNorm, SameBitsForAllThreads) {
  expect_same_bits_for_all_threads([](TestQueue& queue) {
    int64_t rows = 1003, columns = 67;
    Problem p(rows, columns);
    Tensor y(rows * columns), mean(rows), rstd(rows), dx(rows * columns), dscale(columns),
        dbias(columns);
    run(LayerNormForward{y, mean, rstd, p.x, p.scale, p.bias, rows, columns}, queue);
    run(LayerNormBackward{dx, dscale, dbias, p.dy, p.x, mean, rstd, p.scale, rows, columns}, queue);
    std::vector<float> out = y.values();
    for (const Tensor* t : {&mean, &rstd, &dx, &dscale, &dbias}) {
      std::vector<float> v = t->values();
      out.insert(out.end(), v.begin(), v.end());
    }
    return out;
  });
}

TEST(LayerNorm, CostAndChecks) {
  Tensor x(12), y(12), mean(3), rstd(3), scale(4);
  LayerNormForward f{
      .y = y, .mean = mean, .rstd = rstd, .x = x, .scale = scale, .rows = 3, .columns = 4};
  check(f);
  EXPECT_EQ(cost(f).bytes, 4 * (24 + 6 + 4));
  f.mean = x;
  EXPECT_ERROR(check(f), "layer_norm_forward", "mean has 12 elements", "[3] = 3");
  f.mean = mean;
  f.bias = x;
  EXPECT_ERROR(check(f), "bias has 12 elements", "[4]");
  LayerNormBackward b{.dx = y,
                      .dy = x,
                      .x = x,
                      .mean = mean,
                      .rstd = rstd,
                      .scale = scale,
                      .rows = 3,
                      .columns = 4};
  check(b);
  EXPECT_EQ(cost(b).bytes, 4 * (36 + 6 + 4));
  b.dx_write = Write::accumulate;
  EXPECT_EQ(cost(b).bytes, 4 * (48 + 6 + 4));
  std::vector<uint16_t> narrow(12), rounded(12);
  b.dy = narrow_view(narrow);
  b.rounded = narrow_view(rounded);
  b.sums = scale;
  check(b);
  EXPECT_EQ(cost(b).bytes, 4 * (36 + 6 + 4) + 2 * 24 + 4 * 4);
  b.dx = {};
  EXPECT_ERROR(check(b), "rounded and sums go with dx only");
  b.dx = y;
  b.columns = 5;
  EXPECT_ERROR(check(b), "layer_norm_backward", "[3, 5] = 15");
}

}  // namespace
