// SPDX-License-Identifier: Apache-2.0
// Tests batch normalisation against plain loops in double: statistics, running values, forward with
// ReLU and both kinds of shortcut, backward with both ways to find the ReLU's zeros, groups, odd
// numbers of columns, narrow types, instruction sets and threads.
#include "kernels/batch_norm.hpp"

#include "narrow_type.hpp"

COVERS(batch_norm_sums);
COVERS(batch_norm_statistics);
COVERS(batch_norm_running);
COVERS(batch_norm_forward);
COVERS(batch_norm_backward_sums);
COVERS(batch_norm_backward);
COVERS(batch_norm_gradients);

namespace {

using namespace kernels;
using namespace rig;
using device::DType;
using NormDoubles = std::vector<double>;

struct NormSizes {
  int64_t groups, rows, columns;
  int64_t count() const { return groups * rows * columns; }
};
const std::vector<NormSizes> kNormSizes = {{1, 2, 1},   {1, 5, 3},   {2, 9, 8},   {1, 130, 16},
                                           {3, 70, 21}, {1, 3, 260}, {1, 4500, 4}};

View sums_view(NormDoubles& v) { return {v.data(), DType::f64, int64_t(v.size())}; }

// Activations of one type, between guard bands if they are f32.
struct NormActivations {
  std::vector<uint16_t> narrow;
  Tensor wide;
  DType type;
  explicit NormActivations(const std::vector<float>& values, DType of)
      : narrow(narrowed(values)), wide(values, 1), type(of) {}
  explicit NormActivations(int64_t count, DType of)
      : NormActivations(std::vector<float>(size_t(count), NAN), of) {}
  View view() { return type == DType::f32 ? wide.view() : narrow_view(narrow); }
  std::vector<float> values() const {
    if (type == DType::f32) return wide.values();
    std::vector<float> out;
    for (uint16_t bits : narrow) out.push_back(widened(bits));
    return out;
  }
};

// Numbers of a norm, and the same in double.
struct NormNumbers {
  Tensor scale, bias, mean, rstd;
  NormNumbers(const NormSizes& s, const std::string& name)
      : scale(normals(s.columns, name + "scale", 0.3, 1)),
        bias(normals(s.columns, name + "bias", 0.5)),
        mean(normals(s.groups * s.columns, name + "mean", 0.5, 2)),
        rstd(normals(s.groups * s.columns, name + "rstd", 0.1, 1.2)) {}
  BatchNormValues values() const { return {mean, rstd, scale, bias}; }
  double z(const NormSizes& s, int64_t i, double x) const {
    const int64_t g = i / (s.rows * s.columns), j = i % s.columns;
    return (x - double(mean[g * s.columns + j])) * double(rstd[g * s.columns + j]);
  }
  double of(const NormSizes& s, int64_t i, double x) const {
    return z(s, i, x) * double(scale[i % s.columns]) + double(bias[i % s.columns]);
  }
};

double norm_tolerance(DType type) { return type == DType::f32 ? 2e-6 : 0.005 * narrow_part(); }

// Runs body(queue, type) for all types, instruction sets and some numbers of threads.
void for_all_types(const std::function<void(TestQueue&, DType)>& body) {
  for_each_table([&] {
    for (int threads : thread_counts({1, 3})) {
      TestQueue queue(threads);
      body(queue, DType::f32);
      for_each_narrow_type([&] { body(queue, narrow_type()); });
    }
  });
}

TEST(BatchNorm, StatisticsAreThoseOfGroups) {
  for_all_types([](TestQueue& queue, DType type) {
    for (const NormSizes& s : kNormSizes) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", s.groups, s.rows, s.columns));
      // A mean far from 0 shows sums that lose digits.
      NormActivations x(normals(s.count(), "x", 0.7, 20), type);
      const std::vector<float> values = x.values();
      NormDoubles sums(size_t(2 * s.groups * s.columns), NAN), moments(size_t(2 * s.columns), NAN);
      Tensor mean(s.groups * s.columns), rstd(s.groups * s.columns);
      run(BatchNormSums{sums_view(sums), x.view(), s.groups, s.rows, s.columns}, queue);
      run(BatchNormStatistics{.mean = mean,
                              .rstd = rstd,
                              .moments = sums_view(moments),
                              .sums = sums_view(sums),
                              .groups = s.groups,
                              .columns = s.columns,
                              .count = s.rows},
          queue);
      NormDoubles want_mean, want_rstd, means(size_t(s.columns)), variances(size_t(s.columns));
      for (int64_t g = 0; g < s.groups; ++g)
        for (int64_t j = 0; j < s.columns; ++j) {
          double m = 0, v = 0;
          auto at = [&](int64_t r) {
            return double(values[size_t((g * s.rows + r) * s.columns + j)]);
          };
          for (int64_t r = 0; r < s.rows; ++r) m += at(r) / double(s.rows);
          for (int64_t r = 0; r < s.rows; ++r) v += (at(r) - m) * (at(r) - m);
          want_mean.push_back(m);
          want_rstd.push_back(1 / std::sqrt(v / double(s.rows) + 1e-5));
          means[size_t(j)] += m;
          variances[size_t(j)] += v / double(s.rows - 1);
        }
      expect_close(mean.values(), want_mean, 1e-6, "mean");
      expect_close(rstd.values(), want_rstd, 1e-6, "rstd");
      for (int64_t j = 0; j < s.columns; ++j) {
        EXPECT_NEAR(moments[size_t(j)], means[size_t(j)], 1e-9 * std::abs(means[size_t(j)]));
        EXPECT_NEAR(moments[size_t(s.columns + j)], variances[size_t(j)],
                    1e-9 * std::abs(variances[size_t(j)]) + 1e-11);
      }
    }
  });
}

TEST(BatchNorm, RunningValuesMoveAndNormalise) {
  TestQueue queue;
  NormDoubles moments = {1, -2, 3, 0.5, 0.25, 8};
  Tensor mean(std::vector<float>{0, 1, 2}), variance(std::vector<float>{1, 1, 4}),
      batches(std::vector<float>{3}), m(3), r(3);
  run(BatchNormRunning{mean, variance, batches, sums_view(moments), 3, 0.9, 0.1}, queue);
  expect_close(mean.values(), {0.1, 0.7, 2.1}, 1e-7, "mean");
  expect_close(variance.values(), {0.95, 0.925, 4.4}, 1e-7, "variance");
  EXPECT_EQ(batches[0], 4);
  run(
      BatchNormStatistics{
          .mean = m, .rstd = r, .running_mean = mean, .running_variance = variance, .columns = 3},
      queue);
  EXPECT_TRUE(same_bits(m.values(), mean.values()));
  expect_close(r.values(), {1 / std::sqrt(0.95001), 1 / std::sqrt(0.92501), 1 / std::sqrt(4.40001)},
               1e-7, "rstd");
}

TEST(BatchNorm, ForwardAddsShortcutAndCutsOff) {
  for_all_types([](TestQueue& queue, DType type) {
    for (const NormSizes& s : kNormSizes)
      for (int shortcut : {0, 1, 2})
        for (bool relu : {false, true}) {
          SCOPED_TRACE(fmt::format("{} x {} x {}, shortcut {}, relu {}", s.groups, s.rows,
                                   s.columns, shortcut, relu));
          NormActivations x(normals(s.count(), "x", 1, 2), type), y(s.count(), type),
              other(normals(s.count(), "other"), type);
          const NormNumbers norm(s, "own"), second(s, "other");
          BatchNormForward op{.y = y.view(),
                              .x = x.view(),
                              .norm = norm.values(),
                              .groups = s.groups,
                              .rows = s.rows,
                              .columns = s.columns,
                              .relu = relu};
          if (shortcut) op.shortcut = other.view();
          if (shortcut == 2) op.shortcut_norm = second.values();
          run(op, queue);
          const std::vector<float> xs = x.values(), others = other.values();
          NormDoubles want;
          for (int64_t i = 0; i < s.count(); ++i) {
            double v = norm.of(s, i, double(xs[size_t(i)]));
            const double o = double(others[size_t(i)]);
            if (shortcut) v += shortcut == 2 ? second.of(s, i, o) : o;
            want.push_back(relu ? std::max(0.0, v) : v);
          }
          expect_close(y.values(), want, norm_tolerance(type), "y", 1);
        }
  });
}

// The results of backward with a ReLU whose zeros are found from x or from y, for the loss
// sum((dy + add) * y).
TEST(BatchNorm, BackwardIsTheGradientOfForward) {
  for_all_types([](TestQueue& queue, DType type) {
    for (const NormSizes& s : kNormSizes)
      for (int way : {0, 1, 2, 3}) {  // no ReLU; found from x; from y, adding; constant statistics
        SCOPED_TRACE(fmt::format("{} x {} x {}, way {}", s.groups, s.rows, s.columns, way));
        NormActivations x(normals(s.count(), "x", 1, 2), type), y(s.count(), type),
            dy(normals(s.count(), "dy"), type), add(normals(s.count(), "add"), type),
            dx(s.count(), type);
        const NormNumbers norm(s, "own");
        const bool relu = way == 1 || way == 2;
        run(BatchNormForward{.y = y.view(),
                             .x = x.view(),
                             .norm = norm.values(),
                             .groups = s.groups,
                             .rows = s.rows,
                             .columns = s.columns,
                             .relu = relu},
            queue);
        NormDoubles g, sums(size_t(2 * s.groups * s.columns), NAN), want_sums(sums.size()), want;
        const std::vector<float> xs = x.values(), ys = y.values(), dys = dy.values(),
                                 adds = add.values();
        for (size_t i = 0; i < ys.size(); ++i) {
          float v = dys[i] + (way == 2 ? adds[i] : 0.0f);
          if (way == 2 && type != DType::f32) v = widened(narrowed(v));
          g.push_back(relu && ys[i] <= 0 ? 0 : double(v));
        }
        auto sum_at = [&](int64_t i, int k) -> double& {
          return want_sums[size_t((i / (s.rows * s.columns) * 2 + k) * s.columns + i % s.columns)];
        };
        for (int64_t i = 0; i < s.count(); ++i) {
          sum_at(i, 0) += g[size_t(i)];
          sum_at(i, 1) += g[size_t(i)] * norm.z(s, i, double(xs[size_t(i)]));
        }
        for (int64_t i = 0; i < s.count(); ++i) {
          const int64_t of_group = i / (s.rows * s.columns) * s.columns + i % s.columns;
          double v = g[size_t(i)];
          if (way != 3)
            v -= (sum_at(i, 0) + norm.z(s, i, double(xs[size_t(i)])) * sum_at(i, 1)) /
                 double(s.rows);
          want.push_back(v * double(norm.scale[i % s.columns]) * double(norm.rstd[of_group]));
        }
        BatchNormBackwardSums first{.sums = sums_view(sums),
                                    .dy = dy.view(),
                                    .x = x.view(),
                                    .norm = norm.values(),
                                    .parts = s.groups,
                                    .groups = s.groups,
                                    .rows = s.rows,
                                    .columns = s.columns,
                                    .relu = relu};
        if (way == 2) {
          first.g = dy.view();
          first.add = add.view();
          first.y = y.view();
        }
        run(first, queue);
        for (size_t i = 0; i < sums.size(); ++i)
          EXPECT_NEAR(sums[i], want_sums[i], 1e-5 * double(s.rows)) << i;
        run(BatchNormBackward{.dx = dx.view(),
                              .dy = dy.view(),
                              .x = x.view(),
                              .norm = norm.values(),
                              .sums = way == 3 ? View{} : sums_view(sums),
                              .groups = s.groups,
                              .rows = s.rows,
                              .columns = s.columns,
                              .count = s.rows,
                              .relu = way == 1},
            queue);
        expect_close(dx.values(), want, norm_tolerance(type), "dx", 1);
      }
  });
}

// Large results are stored past the caches. Small results, here of parts of the rows, are not.
TEST(BatchNorm, LargeResultsHaveTheBitsOfSmallOnes) {
  if (on_cuda()) GTEST_SKIP() << "only CPUs have two ways to store";
  constexpr int64_t kParts = 3;
  const NormSizes s{1, 70'002, 64};
  const int64_t rows = s.rows / kParts, of_part = rows * s.columns;
  const NormNumbers norm(s, "own"), second(s, "other");
  NormDoubles sums(size_t(2 * s.columns), 0.5);
  for_all_types([&](TestQueue& queue, DType type) {
    device::Ledger ledger;
    auto make = [&](const std::string& name) {
      const std::vector<float> drawn = normals(4099, name);
      const std::vector<uint16_t> narrow = narrowed(drawn);
      device::Buffer out(device::Kind::cpu, ledger, "test", s.count() * device::size_of(type));
      for (size_t i = 0; i < size_t(s.count()); ++i)
        if (type == DType::f32)
          static_cast<float*>(out.data())[i] = drawn[i % drawn.size()];
        else
          static_cast<uint16_t*>(out.data())[i] = narrow[i % narrow.size()];
      return out;
    };
    const device::Buffer x = make("x"), dy = make("dy"), large = make("large"),
                         small = make("small");
    auto forward = [&](View y, int64_t first, int64_t count) {
      run(BatchNormForward{.y = y.slice(first, count),
                           .x = x.view(type).slice(first, count),
                           .norm = norm.values(),
                           .shortcut = dy.view(type).slice(first, count),
                           .shortcut_norm = second.values(),
                           .rows = count / s.columns,
                           .columns = s.columns,
                           .relu = true},
          queue);
    };
    auto backward = [&](View dx, int64_t first, int64_t count) {
      run(BatchNormBackward{.dx = dx.slice(first, count),
                            .dy = dy.view(type).slice(first, count),
                            .x = x.view(type).slice(first, count),
                            .norm = norm.values(),
                            .sums = sums_view(sums),
                            .rows = count / s.columns,
                            .columns = s.columns,
                            .count = s.rows,
                            .relu = true},
          queue);
    };
    auto compare = [&](const auto& op, const char* name) {
      op(large.view(type), 0, s.count());
      for (int64_t i = 0; i < kParts; ++i) op(small.view(type), i * of_part, of_part);
      EXPECT_EQ(std::memcmp(large.data(), small.data(), size_t(large.bytes())), 0) << name;
    };
    compare(forward, "forward");
    compare(backward, "backward");
  });
}

TEST(BatchNorm, GradientsAddPartsAndAccumulate) {
  TestQueue queue;
  NormDoubles sums = {1, 2, 3, 4, 10, 20, 30, 40};  // [2 parts, 2, 2 columns]
  Tensor dscale(std::vector<float>{100, 100}), dbias(2);
  run(BatchNormGradients{.dscale = dscale,
                         .dbias = dbias,
                         .sums = sums_view(sums),
                         .parts = 2,
                         .columns = 2,
                         .scale_write = Write::accumulate},
      queue);
  EXPECT_EQ(dscale.values(), (std::vector<float>{133, 144}));
  EXPECT_EQ(dbias.values(), (std::vector<float>{11, 22}));
}

// Parts of a group have sums of their own, with the statistics of the group.
TEST(BatchNorm, PartsShareTheStatisticsOfTheirGroup) {
  TestQueue queue;
  const NormSizes s{2, 6, 5};
  NormActivations x(normals(s.count(), "x", 1, 2), DType::f32),
      dy(normals(s.count(), "dy"), DType::f32);
  const NormNumbers norm(s, "own");
  NormDoubles whole(size_t(2 * 2 * 5)), parts(size_t(6 * 2 * 5));
  BatchNormBackwardSums op{.sums = sums_view(whole),
                           .dy = dy.view(),
                           .x = x.view(),
                           .norm = norm.values(),
                           .parts = 2,
                           .groups = 2,
                           .rows = 6,
                           .columns = 5};
  run(op, queue);
  op.sums = sums_view(parts);
  op.parts = 6;
  op.rows = 2;
  run(op, queue);
  for (size_t g = 0; g < 2; ++g)
    for (size_t k = 0; k < 10; ++k)
      EXPECT_NEAR(whole[g * 10 + k],
                  parts[g * 30 + k] + parts[g * 30 + 10 + k] + parts[g * 30 + 20 + k], 1e-6);
}

TEST(BatchNorm, BitsDoNotDependOnThreads) {
  const NormSizes s{2, 700, 37};
  const std::vector<float> x = normals(s.count(), "x", 1, 2), dy = normals(s.count(), "dy");
  expect_same_bits_for_all_threads([&](TestQueue& queue) {
    NormActivations in(x, DType::f32), d(dy, DType::f32), y(s.count(), DType::f32),
        dx(s.count(), DType::f32);
    const NormNumbers norm(s, "own");
    NormDoubles sums(size_t(4 * s.columns)), more(sums.size());
    run(BatchNormSums{sums_view(sums), in.view(), s.groups, s.rows, s.columns}, queue);
    run(BatchNormForward{.y = y.view(),
                         .x = in.view(),
                         .norm = norm.values(),
                         .groups = s.groups,
                         .rows = s.rows,
                         .columns = s.columns,
                         .relu = true},
        queue);
    run(BatchNormBackwardSums{.sums = sums_view(more),
                              .dy = d.view(),
                              .x = in.view(),
                              .norm = norm.values(),
                              .parts = 2,
                              .groups = 2,
                              .rows = s.rows,
                              .columns = s.columns,
                              .relu = true},
        queue);
    run(BatchNormBackward{.dx = dx.view(),
                          .dy = d.view(),
                          .x = in.view(),
                          .norm = norm.values(),
                          .sums = sums_view(more),
                          .groups = 2,
                          .rows = s.rows,
                          .columns = s.columns,
                          .count = s.rows,
                          .relu = true},
        queue);
    std::vector<float> all = y.values(), last = dx.values();
    all.insert(all.end(), last.begin(), last.end());
    for (const NormDoubles* v : {&sums, &more})
      for (double d64 : *v) {
        float halves[2];
        std::memcpy(halves, &d64, 8);
        all.insert(all.end(), halves, halves + 2);
      }
    return all;
  });
}

// A column whose values are all equal, with scale and bias 0, has no gradient and no NaN.
TEST(BatchNorm, AConstantColumnHasNoGradient) {
  TestQueue queue;
  NormActivations x(std::vector<float>(4, 3), DType::f32),
      dy(std::vector<float>{1, 2, 3, 4}, DType::f32), dx(4, DType::f32);
  Tensor mean(1), rstd(1), scale(std::vector<float>{0}), bias(std::vector<float>{0});
  NormDoubles sums(2);
  run(BatchNormSums{sums_view(sums), x.view(), 1, 4, 1}, queue);
  run(
      BatchNormStatistics{
          .mean = mean, .rstd = rstd, .sums = sums_view(sums), .columns = 1, .count = 4},
      queue);
  EXPECT_NEAR(double(rstd[0]), 1 / std::sqrt(1e-5), 1e-2);
  const BatchNormValues norm{mean, rstd, scale, bias};
  run(BatchNormBackwardSums{.sums = sums_view(sums),
                            .dy = dy.view(),
                            .x = x.view(),
                            .norm = norm,
                            .rows = 4,
                            .columns = 1,
                            .relu = true},
      queue);
  EXPECT_EQ(sums, (NormDoubles{0, 0}));
  run(BatchNormBackward{.dx = dx.view(),
                        .dy = dy.view(),
                        .x = x.view(),
                        .norm = norm,
                        .sums = sums_view(sums),
                        .rows = 4,
                        .columns = 1,
                        .count = 4,
                        .relu = true},
      queue);
  EXPECT_EQ(dx.values(), std::vector<float>(4, 0));
}

TEST(BatchNorm, ChecksAndCosts) {
  Tensor x(24), y(24), v(4);
  NormDoubles sums(8);
  BatchNormSums of{sums_view(sums), x, 1, 6, 4};
  check(of);
  EXPECT_EQ(cost(of).bytes, 24 * 4 + 8 * 8);
  of.rows = 5;
  EXPECT_ERROR(check(of), "batch_norm_sums", "x has 24 elements");
  BatchNormStatistics form{.mean = v, .rstd = v, .sums = sums_view(sums), .columns = 4, .count = 1};
  EXPECT_ERROR(check(form), "batch_norm_statistics", "a variance of 1 values");
  BatchNormForward forward{.y = y, .x = x, .norm = {v, v, {}, {}}, .rows = 6, .columns = 4};
  check(forward);
  EXPECT_EQ(cost(forward).bytes, 2 * 96);
  forward.shortcut = v;
  EXPECT_ERROR(check(forward), "batch_norm_forward", "shortcut has 4 elements of f32, not 24");
  BatchNormBackwardSums backward{
      .sums = sums_view(sums), .dy = x, .x = x, .norm = {v, v, {}, {}}, .rows = 6, .columns = 4};
  check(backward);
  backward.y = y;
  EXPECT_ERROR(check(backward), "batch_norm_backward_sums", "y is used only with a ReLU");
}

}  // namespace
