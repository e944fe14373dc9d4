// SPDX-License-Identifier: Apache-2.0
// Tests the ops of published optimizers (ssl.md 4) against naive double-precision loops: decay
// within the gradient, ratios of norms, Lion, amsgrad, the infinity norm, unit rows, noise.
#include "kernels/adamw_update.hpp"
#include "kernels/add_noise.hpp"
#include "kernels/clip_gradient.hpp"
#include "kernels/lion_update.hpp"
#include "kernels/loss_scale.hpp"
#include "kernels/max_abs.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/trust.hpp"
#include "kernels/unit_rows.hpp"
#include "rig.hpp"

COVERS(trust_sums);
COVERS(trust_ratio);
COVERS(lion_update);
COVERS(max_abs);
COVERS(row_squares);
COVERS(unit_rows);
COVERS(add_noise);

namespace {

using namespace kernels;
using namespace rig;
using device::view;

View view64(std::vector<double>& x) { return {x.data(), DType::f64, int64_t(x.size())}; }
View view32(std::vector<float>& x) { return view(x.data(), int64_t(x.size())); }

// An update of n elements, with the memory of its views.
struct Job {
  explicit Job(int64_t n)
      : w0(normals(n, "w")), g0(normals(n, "g")), w(w0), g(g0), sums(2), trust{0.75f, 0.125f} {
    update.weights = view32(w);
    update.gradient = view32(g);
    update.sums = view64(sums);
    update.clip = {3, 1.5f};
    update.rate = 0.25f;
    update.decay = 0.0625f;
    update.schedule = 0.5f;
  }
  double gradient(size_t i) const {  // as the rule gets it
    const double decay = update.inner.trust.none() ? double(update.inner.decay) : double(trust[1]);
    const double ratio = update.inner.trust.none() ? double(update.inner.ratio) : double(trust[0]);
    return (double(g0[i]) / 3 * 1.5 + decay * double(w0[i])) * ratio;
  }
  double after(size_t i, double direction) const {
    return double(w0[i]) - 0.5 * (0.25 * direction + 0.0625 * double(w0[i]));
  }
  std::vector<float> w0, g0, w, g;
  std::vector<double> sums;
  std::vector<float> trust;
  Update update;
};

TEST(PublishedUpdates, DecayWithinTheGradient) {
  for (int64_t n : {1, 5, 513, 20003})
    for (int where : {0, 1, 2, 3}) {  // decay; ratio; both; both in memory
      std::vector<float> first;
      for (int threads : thread_counts({1, 3})) {
        Job job(n);
        if (where != 1) job.update.inner.decay = 0.125f;
        if (where != 0) job.update.inner.ratio = 0.75f;
        if (where == 3) job.update.inner = {.decay = 9, .ratio = 9, .trust = view32(job.trust)};
        TestQueue queue(threads);
        run(ApplyUpdate{job.update}, queue);
        for (size_t i = 0; i < job.w.size(); ++i)
          ASSERT_NEAR(job.w[i], job.after(i, job.gradient(i)), 2e-6) << n << " " << where;
        if (first.empty()) first = job.w;
        EXPECT_EQ(first, job.w) << "bits depend on threads";
      }
    }
}

TEST(PublishedUpdates, DampenedMomentum) {
  for (bool nesterov : {false, true}) {
    Job job(1000);
    job.update.inner.decay = 0.125f;
    const auto t0 = normals(1000, "t");
    auto t = t0;
    TestQueue queue(2);
    run(MomentumUpdate{.update = job.update,
                       .trace = view32(t),
                       .keep = 0.875f,
                       .momentum = 0.875f,
                       .nesterov = nesterov,
                       .add = 0.25f},
        queue);
    for (size_t i = 0; i < t.size(); ++i) {
      const double next = 0.875 * double(t0[i]) + 0.25 * job.gradient(i);
      ASSERT_NEAR(t[i], next, 2e-6);
      ASSERT_NEAR(job.w[i], job.after(i, nesterov ? job.gradient(i) + 0.875 * next : next), 2e-6);
    }
  }
}

TEST(PublishedUpdates, AdamDividesByTheLargestMoment) {
  Job job(1001);
  const auto m0 = normals(1001, "m");
  auto m = m0, v = normals(1001, "v"), most = normals(1001, "most");
  for (float& x : v) x = x * x;
  for (float& x : most) x = x * x;
  const auto v0 = v, most0 = most;
  TestQueue queue(2);
  AdamwUpdate a{job.update, view32(m), view32(v), 0.75f, 0.25f, 0.875f, 0.125f, 0.5f, 0.25f, 1e-3f};
  a.nu_max = view32(most);
  run(a, queue);
  for (size_t i = 0; i < m.size(); ++i) {
    const double g = job.gradient(i), mean = 0.75 * double(m0[i]) + 0.25 * g,
                 square = 0.875 * double(v0[i]) + 0.125 * g * g,
                 largest = std::max(square, double(most0[i]));
    ASSERT_NEAR(v[i], square, 2e-6 * (1 + square));
    ASSERT_NEAR(most[i], largest, 2e-6 * (1 + largest));
    ASSERT_NEAR(job.w[i], job.after(i, mean / 0.5 / (std::sqrt(largest / 0.25) + double(1e-3f))),
                1e-5);
  }
}

TEST(PublishedUpdates, RmspropDividesBeforeMomentum) {
  for (const bool momentum : {false, true})
    for (const bool centred : {false, true}) {
      SCOPED_TRACE(testing::Message() << momentum << " " << centred);
      Job job(1001);
      auto mu = normals(1001, "m"), square = normals(1001, "v"), mean = normals(1001, "c");
      // A mean of squares is at least the square of the mean, up to rounding.
      for (size_t i = 0; i < mean.size(); ++i)
        square[i] = square[i] * square[i] + mean[i] * mean[i];
      const auto mu0 = mu, square0 = square, mean0 = mean;
      TestQueue queue(2);
      AdamwUpdate a{.update = job.update, .mu = {}, .nu = view32(square)};
      a.divides_first = true;
      a.keep1 = 0.75f;
      a.keep2 = 0.875f;
      a.add2 = 0.125f;
      a.eps = 1e-3f;
      if (momentum) a.mu = view32(mu);
      if (centred) a.centre = view32(mean);
      run(a, queue);
      for (size_t i = 0; i < mu.size(); ++i) {
        const double g = job.gradient(i), v = 0.875 * double(square0[i]) + 0.125 * g * g,
                     c = centred ? double(mean0[i]) + 0.125 * (g - double(mean0[i])) : 0,
                     d = (momentum ? 0.75 * double(mu0[i]) : 0) +
                         g / (std::sqrt(v - c * c) + double(1e-3f));
        ASSERT_NEAR(square[i], v, 2e-6 * (1 + v));
        if (centred) {
          ASSERT_NEAR(mean[i], c, 2e-6);
        }
        if (momentum) {
          ASSERT_NEAR(mu[i], d, 1e-5 * (1 + std::abs(d)));
        }
        ASSERT_NEAR(job.w[i], job.after(i, d), 1e-5 * (1 + std::abs(d)));
      }
    }
}

// A gradient that has always been the same has no variance: rounding must not make its root NaN.
TEST(PublishedUpdates, RmspropOfAConstantGradientIsFinite) {
  Job job(1001);
  std::vector<float> square(1001), mean(1001);
  for (size_t i = 0; i < mean.size(); ++i) {
    mean[i] = float(job.gradient(i));
    square[i] = std::nextafter(mean[i] * mean[i], 0.0f);
  }
  TestQueue queue(1);
  AdamwUpdate a{.update = job.update, .mu = {}, .nu = view32(square)};
  a.divides_first = true;
  a.keep2 = 0.875f;
  a.add2 = 0.125f;
  a.eps = 1;
  a.centre = view32(mean);
  run(a, queue);
  for (float w : job.w) ASSERT_TRUE(std::isfinite(w));
}

TEST(PublishedUpdates, LionMovesByTheSign) {
  for (int64_t n : {1, 514, 20003}) {
    Job job(n);
    job.g0[0] = job.g[0] = 0;
    auto mu = normals(n, "mu");
    mu[0] = 0;
    const auto mu0 = mu;
    TestQueue queue(3);
    run(LionUpdate{job.update, view32(mu), 0.875f, 0.125f, 0.75f, 0.25f}, queue);
    for (size_t i = 0; i < mu.size(); ++i) {
      const double g = job.gradient(i), toward = 0.875 * double(mu0[i]) + 0.125 * g;
      ASSERT_NEAR(mu[i], 0.75 * double(mu0[i]) + 0.25 * g, 2e-6);
      if (std::abs(toward) < 1e-6 && toward != 0) continue;
      ASSERT_NEAR(job.w[i], job.after(i, toward > 0 ? 1 : toward < 0 ? -1 : 0), 2e-6) << i;
    }
    EXPECT_FLOAT_EQ(job.w[0], float(job.after(0, 0))) << "no sign, no direction";
  }
}

TEST(PublishedUpdates, TrustSums) {
  for (int64_t n : {0, 1, 511, 16385, 40001})
    for (double decay : {0.0, 0.25}) {
      const auto w0 = normals(n, "w"), g0 = normals(n, "g");
      double of_w = 0, of_g = 0;
      for (size_t i = 0; i < w0.size(); ++i) {
        const double g = double(g0[i]) / 3 * 1.5 + decay * double(w0[i]);
        of_w += double(w0[i]) * double(w0[i]);
        of_g += g * g;
      }
      std::vector<double> first;
      for (int threads : thread_counts({1, 3})) {
        auto w = w0, g = g0;
        std::vector<double> sums{-1, -1};
        TestQueue queue(threads);
        TrustSums a{view64(sums), view32(w), view32(g), {3, 1.5f}, float(decay)};
        run(a, queue);
        EXPECT_NEAR(sums[0], of_w, 1e-12 * of_w);
        EXPECT_NEAR(sums[1], of_g, 1e-6 * of_g);
        if (first.empty()) first = sums;
        EXPECT_EQ(first, sums) << "bits depend on threads";
        std::vector<float> decided{1, 1, 0};
        a.clip = {.decided = view32(decided)};
        run(a, queue);
        EXPECT_EQ(sums[1], 0) << "a step that is not applied";
      }
    }
}

TEST(PublishedUpdates, TrustRatios) {
  TestQueue queue;
  auto ratio = [&](TrustRatio a, double w, double g) {
    std::vector<double> sums{w * w, g * g};
    std::vector<float> trust(2);
    a.sums = view64(sums);
    a.trust = view32(trust);
    run(a, queue);
    return trust;
  };
  TrustRatio a{.rule = Trust::larc, .coefficient = 0.5f, .eps = 0.25f, .decay = 0.125f};
  EXPECT_EQ(ratio(a, 4, 2), (std::vector<float>{float(0.5 * 4 / (2 + 0.125 * 4 + 0.25)), 0.125f}));
  EXPECT_EQ(ratio(a, 0, 2), (std::vector<float>{1, 0})) << "no decay without a ratio";
  EXPECT_EQ(ratio(a, 4, 0), (std::vector<float>{1, 0}));
  a.limit = 2;  // the ratio is above it in the first case, below in the second
  EXPECT_EQ(ratio(a, 400, 2), (std::vector<float>{1, 0.125f}));
  EXPECT_EQ(ratio(a, 4, 2), (std::vector<float>{float(0.5 * 4 / 2.75 / 2), 0.125f}));
  a.rule = Trust::lars;
  a.limit = 0;
  EXPECT_EQ(ratio(a, 4, 2), (std::vector<float>{1, 0.125f}));
  EXPECT_EQ(ratio(a, 4, 8), (std::vector<float>{0.25f, 0.125f}));
  EXPECT_EQ(ratio(a, 0, 2), (std::vector<float>{1, 0.125f})) << "LARS keeps its decay";
}

TEST(PublishedUpdates, LargestValue) {
  for (int64_t n : {0, 1, 3, 1025, 40001})
    for (int threads : thread_counts({1, 3})) {
      auto x = normals(n, "x");
      double want = 0;
      for (float v : x) want = std::max(want, double(std::abs(v)));
      if (n > 3) {
        x[size_t(n / 2)] = -9;
        want = 9;
      }
      std::vector<double> largest{-1};
      TestQueue queue(threads);
      run(MaxAbs{view64(largest), view32(x)}, queue);
      EXPECT_EQ(largest[0], want) << n;
    }
}

TEST(PublishedUpdates, ClipsAndDropsByTheLargestValue) {
  TestQueue queue;
  std::vector<double> squares{9, 16}, norm(1), largest{0, 3.5, 3, 0};
  std::vector<int32_t> places{0, 1};
  std::vector<float> decision(3);
  ClipGradient a{.decision = view32(decision),
                 .norm = view64(norm),
                 .squares = view64(squares),
                 .places = view(places.data(), 2)};
  auto decide = [&](float bound, float drop, bool infinity, std::vector<float> expected) {
    a.bound = bound;
    a.drop = drop;
    a.largest = infinity ? view64(largest) : View{};
    run(a, queue);
    EXPECT_EQ(decision, expected) << bound << " " << drop << " " << infinity;
    EXPECT_EQ(norm[0], 5);
  };
  decide(4, 0, false, {5, 4, 1});
  decide(4, 0, true, {1, 1, 1});
  decide(2, 0, true, {3.5f, 2, 1});
  decide(0, 5, false, {1, 1, 0});  // a norm at the limit is dropped
  decide(0, 5.5f, false, {1, 1, 1});
  decide(2, 5, true, {3.5f, 2, 1});
  decide(2, 3.5f, true, {3.5f, 2, 0});

  // With a loss scale of 8 the numbers are those of gradients times the scale.
  std::vector<float> state{8, 1, 0};
  for (double& x : largest) x *= 8;
  for (auto [bound, drop, expected] : {std::tuple{2.0f, 0.0f, std::vector<float>{28, 2, 1}},
                                       {0.0f, 3.5f, {8, 1, 0}},
                                       {2.0f, 4.0f, {28, 2, 1}}}) {
    norm[0] = 40;
    decision = {1, 1, 1};
    run(LossScale{.decision = view32(decision),
                  .norm = view64(norm),
                  .state = view32(state),
                  .largest = view64(largest),
                  .bound = bound,
                  .drop = drop},
        queue);
    EXPECT_EQ(decision, expected) << bound << " " << drop;
    EXPECT_EQ(norm[0], 5);
    EXPECT_EQ(state[0], 8) << "a dropped step is no overflow";
  }
}

TEST(PublishedUpdates, RowsOfUnitLength) {
  for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {40, 33}, {9, 2049}}) {
    const int64_t n = rows * width;
    const auto x0 = normals(n, "x");
    // The matrix is divided into parts that cut rows. Each part writes the sums of its own rows.
    for (std::vector<int64_t> ends :
         {std::vector<int64_t>{n}, std::vector<int64_t>{n / 3, n / 2, n}}) {
      auto x = x0;
      std::vector<double> sums(size_t(rows), 0.0);
      TestQueue queue(3);
      for (int64_t begin = 0; int64_t end : ends) {
        std::vector<double> part(size_t(rows), -1.0);
        run(RowSquares{view64(part), view32(x).slice(begin, end - begin), begin, width}, queue);
        for (int64_t r = 0; r < rows; ++r) {
          const bool touched = begin < end && r * width < end && (r + 1) * width > begin;
          EXPECT_EQ(part[size_t(r)] == -1, !touched) << r;
          if (touched) sums[size_t(r)] += part[size_t(r)];
        }
        begin = end;
      }
      if (rows == 3) sums[1] = 0;  // a row of zeros stays one: no division by zero
      std::vector<float> decided{1, 1, 0};
      for (bool apply : {false, true}) {
        decided[2] = apply;
        for (int64_t begin = 0; int64_t end : ends) {
          run(UnitRows{view32(x).slice(begin, end - begin), view64(sums), begin, width,
                       view32(decided)},
              queue);
          begin = end;
        }
        if (apply) continue;
        EXPECT_EQ(x, x0);
      }
      for (int64_t i = 0; i < n; ++i) {
        double square = 0;
        for (int64_t k = i / width * width; k < (i / width + 1) * width; ++k)
          square += double(x0[size_t(k)]) * double(x0[size_t(k)]);
        const double norm = rows == 3 && i / width == 1 ? 1e-12 : std::sqrt(square);
        ASSERT_NEAR(x[size_t(i)] * norm, x0[size_t(i)], 1e-6 * (1 + std::abs(x0[size_t(i)])));
      }
    }
  }
}

TEST(PublishedUpdates, NoiseIsCounted) {
  const int64_t n = 20011;
  const base::Stream stream(7, "noise");
  const auto x0 = normals(n, "x");
  for (int64_t split : {n, int64_t{1}, int64_t{777}}) {
    auto x = x0;
    TestQueue queue(3);
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, split}, {split, n}}) {
      const View part = view32(x).slice(begin, end - begin);
      run(AddNoise{part, part, stream, begin, 0.5f}, queue);
    }
    double sum = 0, square = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double noise = (double(x[size_t(i)]) - double(x0[size_t(i)])) / 0.5;
      ASSERT_NEAR(noise, stream.normal(uint64_t(i)), 2e-6);
      sum += noise;
      square += noise * noise;
    }
    EXPECT_NEAR(sum / double(n), 0, 0.03);
    EXPECT_NEAR(square / double(n), 1, 0.03);
  }
}

}  // namespace
