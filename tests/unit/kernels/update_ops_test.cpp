// SPDX-License-Identifier: Apache-2.0
// Tests the optimizer's ops against naive double-precision loops: odd sizes, every layout of
// factored tensors, every thread count.
#include "kernels/adafactor.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/clip_gradient.hpp"
#include "kernels/ema_update.hpp"
#include "kernels/loss_scale.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/square_sums.hpp"
#include "rig.hpp"

COVERS(square_sums);
COVERS(add_sums);
COVERS(adafactor_sums);
COVERS(adafactor_factors);
COVERS(adafactor_rms);
COVERS(adafactor_update);
COVERS(adamw_update);
COVERS(momentum_update);
COVERS(apply_update);
COVERS(clip_gradient);
COVERS(loss_scale);
COVERS(ema_update);

namespace {

using namespace kernels;
using namespace rig;
using device::view;
using loops::Bf16;

View view64(std::vector<double>& x) { return {x.data(), DType::f64, int64_t(x.size())}; }
View view32(std::vector<float>& x) { return view(x.data(), int64_t(x.size())); }

TEST(UpdateOps, Bf16RoundsToNearestEven) {
  auto stored = [](float x) { return loops::to_float(loops::round_to_bf16(x)); };
  EXPECT_EQ(stored(0.9f), 0.8984375f);
  EXPECT_EQ(stored(1.0f + 0x1p-8f), 1.0f);                    // tie: down to even
  EXPECT_EQ(stored(1.0f + 3 * 0x1p-8f), 1.0f + 4 * 0x1p-8f);  // tie: up to even
  EXPECT_EQ(stored(1.0f + 0x1p-8f + 0x1p-20f), 1.0f + 0x1p-7f);
  EXPECT_EQ(stored(-0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(stored(NAN)));
  EXPECT_TRUE(std::isnan(stored(std::bit_cast<float>(0x7FFFFFFFu))));
  EXPECT_EQ(stored(INFINITY), INFINITY);
}

TEST(UpdateOps, EmaUpdate) {
  for (int64_t n : {0, 1, 3, 4, 63, 1025, 40001}) {
    const auto x = normals(n, "x"), before = normals(n, "y");
    for (float keep : {0.0f, 0.75f, 0.9999f, 1.0f})
      for (int64_t shift : {0, 1}) {
        const int64_t m = std::max<int64_t>(0, n - shift);
        std::vector<float> y = before, one = before;
        std::vector<float> values = x, decided{1, 1, 0};
        TestQueue queue(3), alone(1);
        EmaUpdate a{view32(y).slice(n - m, m), view32(values).slice(n - m, m), view32(decided),
                    keep};
        run(a, queue);
        EXPECT_EQ(y, before) << "a step that is not applied";
        decided[2] = 1;
        run(a, queue);
        a.average = view32(one).slice(n - m, m);
        a.decided = {};
        run(a, alone);
        EXPECT_EQ(y, one) << "bits depend on threads or on the decision";
        for (int64_t i = 0; i < n; ++i) {
          const double from = before[size_t(i)], to = x[size_t(i)];
          if (i < n - m || keep == 1)
            ASSERT_EQ(y[size_t(i)], before[size_t(i)]);
          else if (keep == 0)
            ASSERT_EQ(y[size_t(i)], x[size_t(i)]);
          else
            ASSERT_NEAR(y[size_t(i)], double(keep) * from + (1 - double(keep)) * to, 5e-7);
        }
      }
  }
  std::vector<float> x(8), y(7);
  TestQueue queue;
  EXPECT_THROW(run(EmaUpdate{view32(y), view32(x), {}, 0.5f}, queue), base::Error);
  EXPECT_THROW(run(EmaUpdate{view32(x), view32(x), {}, 1.5f}, queue), base::Error);
}

TEST(UpdateOps, SquareSumsAndAddSums) {
  for (int64_t n : {0, 1, 15, 16, 17, 511, 16384, 16385, 100003}) {
    auto x = normals(n, "x");
    double want = 0, got[2];
    for (float v : x) want += double(v) * double(v);
    for (int threads : {1, 3}) {
      TestQueue queue(threads);
      run(SquareSums{{&got[threads / 2], DType::f64, 1}, view32(x)}, queue);
    }
    EXPECT_NEAR(got[0], want, 1e-12 * want);
    EXPECT_EQ(got[0], got[1]) << "bits depend on threads";
  }
  TestQueue queue;
  std::vector<double> a{1, 2, 3}, b{10, 20, 30}, y(3, -1);
  run(AddSums{view64(y), view64(a), view64(b)}, queue);
  EXPECT_EQ(y, (std::vector<double>{11, 22, 33}));
  run(AddSums{view64(y), {}, view64(b)}, queue);
  EXPECT_EQ(y, b);
  run(AddSums{view64(y)}, queue);
  EXPECT_EQ(y, (std::vector<double>{0, 0, 0}));
}

std::vector<Factored> layouts() {
  return {{1, 5, 1, 7, 1, false},     {1, 70, 3, 9, 1, true},     {4, 33, 1, 35, 1, false},
          {3, 130, 2, 70, 1, true},   {1, 65, 1, 2500, 1, false}, {2, 3, 2, 1100, 1, false},
          {2, 6, 3, 5, 4, true},      {1, 40, 1, 700, 3, false},  {1, 70, 3, 64, 1, true},
          {2, 130, 1, 256, 1, false}, {3, 5, 5, 8, 1, true},      {1, 65, 1, 384, 1, false}};
}

TEST(UpdateOps, AdafactorSums) {
  for (const Factored& s : layouts()) {
    const int64_t n = s.count();
    auto g = normals(n, "g");
    // The tensor may be cut anywhere, and each part adds to the same sums.
    for (std::vector<int64_t> ends :
         {std::vector<int64_t>{n}, {1, n / 3, n / 3 + 1, n / 2, n - 1, n}}) {
      std::vector<double> x(size_t(s.over_x())), y(size_t(s.over_y())), want_x(x.size()),
          want_y(y.size());
      double total = 0, want = 0;
      TestQueue one(1), three(3);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t in = i % s.inner, yy = i / s.inner % s.y, m = i / s.inner / s.y % s.middle;
        const int64_t xx = i / s.inner / s.y / s.middle % s.x,
                      o = i / s.inner / s.y / s.middle / s.x;
        const double d = double(g[size_t(i)]) * double(g[size_t(i)]);
        want += d;
        want_x[size_t(((o * s.middle + m) * s.y + yy) * s.inner + in)] += d;
        want_y[size_t(((o * s.x + xx) * s.middle + m) * s.inner + in)] += d;
      }
      int64_t begin = 0;
      for (int64_t end : ends) {
        double part[2];
        std::vector<double> x1(x.size()), y1(y.size()), x3(x.size()), y3(y.size());
        View piece = view32(g).slice(begin, end - begin);
        run(AdafactorSums{{&part[0], DType::f64, 1}, view64(x1), view64(y1), piece, begin, s}, one);
        run(AdafactorSums{{&part[1], DType::f64, 1}, view64(x3), view64(y3), piece, begin, s},
            three);
        EXPECT_EQ(part[0], part[1]);
        EXPECT_EQ(x1, x3);
        EXPECT_EQ(y1, y3);
        total += part[0];
        begin = end;
        for (size_t i = 0; i < x.size(); ++i) x[i] += x1[i];
        for (size_t i = 0; i < y.size(); ++i) y[i] += y1[i];
      }
      EXPECT_NEAR(total, want, 1e-12 * want);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], want_x[i], 1e-12 * want_x[i]) << i;
      for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], want_y[i], 1e-12 * want_y[i]) << i;
    }
  }
}

TEST(UpdateOps, AdafactorFactorsAndFactoredUpdate) {
  const float beta2 = 0.7f, eps = 1e-3f;
  for (const Factored& s : layouts()) {
    const int64_t n = s.count();
    auto g = normals(n, "g"), w = normals(n, "w");
    std::vector<double> sum_x(size_t(s.over_x())), sum_y(size_t(s.over_y())), sums(2), total(1),
        rms(1);
    std::vector<float> vx = normals(s.over_x(), "vx"), vy = normals(s.over_y(), "vy"),
                       fx(vx.size()), fy(vy.size());
    for (float& v : vx) v = v * v;
    for (float& v : vy) v = v * v;
    const auto old_x = vx, old_y = vy, old_w = w;
    TestQueue queue(2);
    run(AdafactorSums{view64(total), view64(sum_x), view64(sum_y), view32(g), 0, s}, queue);
    run(AdafactorFactors{view32(vx),
                         view32(vy),
                         view32(fx),
                         view32(fy),
                         view64(sum_x),
                         view64(sum_y),
                         s,
                         {2, 1},
                         beta2,
                         eps},
        queue);
    std::vector<double> rx(vx.size()), ry(vy.size());
    for (size_t i = 0; i < rx.size(); ++i)
      rx[i] = beta2 * old_x[i] + (1 - double(beta2)) * (sum_x[i] * 0.25 / double(s.x) + eps);
    for (size_t i = 0; i < ry.size(); ++i)
      ry[i] = beta2 * old_y[i] + (1 - double(beta2)) * (sum_y[i] * 0.25 / double(s.y) + eps);
    for (size_t i = 0; i < rx.size(); ++i) ASSERT_NEAR(vx[i], rx[i], 3e-7 * rx[i]);
    for (size_t i = 0; i < ry.size(); ++i) ASSERT_NEAR(vy[i], ry[i], 3e-7 * ry[i]);

    // The update runs in two pieces, clipped (divisor 2), without momentum and decay.
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, n / 3 + 1}, {n / 3 + 1, n}}) {
      AdafactorUpdate a;
      a.update.weights = view32(w).slice(begin, end - begin);
      a.update.gradient = view32(g).slice(begin, end - begin);
      a.update.sums = view64(sums);
      a.update.clip.divisor = 2;
      a.update.rate = 0.5f;
      a.scaling.factor_over_x = view32(fx);
      a.scaling.factor_over_y = view32(fy);
      a.scaling.shape = s;
      a.scaling.begin = begin;
      std::vector<double> square{64.0 * double(n)};  // RMS 8, threshold 2: divided by 4
      a.rms = {view64(square), n, 2};
      run(AdafactorRms{view64(rms), a.update.gradient, {2, 1}, a.scaling}, queue);
      run(a, queue);
      double of_w = 0, of_u = 0;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t in = i % s.inner, yy = i / s.inner % s.y, m = i / s.inner / s.y % s.middle;
        const int64_t xx = i / s.inner / s.y / s.middle % s.x,
                      o = i / s.inner / s.y / s.middle / s.x;
        double mean = 0;
        if (s.x_is_largest)
          for (int64_t k = 0; k < s.y; ++k)
            mean += rx[size_t(((o * s.middle + m) * s.y + k) * s.inner + in)] / double(s.y);
        else
          for (int64_t k = 0; k < s.x; ++k)
            mean += ry[size_t(((o * s.x + k) * s.middle + m) * s.inner + in)] / double(s.x);
        const double r = rx[size_t(((o * s.middle + m) * s.y + yy) * s.inner + in)];
        const double c = ry[size_t(((o * s.x + xx) * s.middle + m) * s.inner + in)];
        const double want =
            double(g[size_t(i)]) / 2 / std::sqrt(r / mean) / std::sqrt(c) * mean / mean;
        const double u = -0.5 * want / 4;
        ASSERT_NEAR(w[size_t(i)], old_w[size_t(i)] + u, 1e-6 * (1 + std::abs(u))) << i;
        of_w += double(w[size_t(i)]) * w[size_t(i)];
        of_u += u * u;
      }
      EXPECT_NEAR(sums[0], of_w, 1e-10 * of_w);
      EXPECT_NEAR(sums[1], of_u, 4e-6 * of_u);
      EXPECT_NEAR(rms[0], of_u * 64, 4e-6 * of_u * 64);
    }
  }
}

constexpr int kRules = 5;

// Runs an element-wise rule on some elements, with its first moments m and second moments v.
void run_rule(int rule, const Update& u, View m, View v, TestQueue& queue) {
  switch (rule) {
    case 0:
      run(ApplyUpdate{u}, queue);
      break;
    case 1:
      run(MomentumUpdate{u, m, 0.75f, 0.75f, false}, queue);
      break;
    case 2:
      run(MomentumUpdate{u, m, 0.75f, 0.75f, true}, queue);
      break;
    case 3:
      run(AdamwUpdate{u, m, v, 0.75f, 0.25f, 0.875f, 0.125f, 0.4f, 0.3f, 1e-3f, 1e-4f}, queue);
      break;
    case 4: {
      AdafactorUpdate a;
      a.update = u;
      a.momentum = m;
      a.keep = 0.875f;
      a.add = 0.1f;
      a.scaling.v = v;
      a.scaling.beta2 = 0.625f;
      a.scaling.eps = 1e-3f;
      run(a, queue);
    }
  }
}

// The direction of one element and its next moments, in double.
struct RuleResult {
  double direction, first, second;
};
RuleResult rule_result(int rule, double gradient, double first, double second) {
  RuleResult r{gradient, first, second};
  if (rule == 1) r.direction = r.first = gradient + 0.75 * first;
  if (rule == 2) {
    r.first = gradient + 0.75 * first;
    r.direction = gradient + 0.75 * r.first;
  }
  if (rule == 3) {
    r.first = 0.75 * first + 0.25 * gradient;
    r.second = 0.875 * second + 0.125 * gradient * gradient;
    r.direction = r.first / double(0.4f) /
                  (std::sqrt(r.second / double(0.3f) + double(1e-4f)) + double(1e-3f));
  }
  if (rule == 4) {
    r.second = 0.625 * second + 0.375 * (gradient * gradient + double(1e-3f));
    r.direction = r.first = double(0.1f) * gradient / std::sqrt(r.second) + 0.875 * first;
  }
  return r;
}

// Every element-wise rule, with both state types, must be close to double and bit-equal for any
// split of the elements.
template <class T>
void element_rules() {
  const int64_t n = 40001;
  auto stored = [](float x) { return loops::to_float(loops::store_as<T>(x)); };
  const auto g = normals(n, "g"), w0 = normals(n, "w"), m0 = normals(n, "m");
  auto v0 = normals(n, "v");
  for (float& v : v0) v = v * v;
  for (int rule = 0; rule < kRules; ++rule) {
    std::vector<float> first;
    for (int64_t split : {n, int64_t{1}, int64_t{16390}, int64_t{20003}}) {
      auto w = w0, v = v0;
      auto gradient = g;
      std::vector<T> m(m0.size());
      for (size_t i = 0; i < m.size(); ++i) m[i] = loops::store_as<T>(m0[i]);
      View mv{m.data(), sizeof(T) == 2 ? DType::bf16 : DType::f32, n};
      for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, split}, {split, n}}) {
        if (begin == end) continue;
        TestQueue queue(split == n ? 1 : 3);
        std::vector<double> sums(2);
        Update u;
        u.weights = view32(w).slice(begin, end - begin);
        u.gradient = view32(gradient).slice(begin, end - begin);
        u.sums = view64(sums);
        u.clip = {3, 1.5f};
        u.rate = 0.1f;
        u.decay = 0.01f;
        u.schedule = 0.5f;
        run_rule(rule, u, mv.slice(begin, end - begin), view32(v).slice(begin, end - begin), queue);
      }
      for (int64_t k = 0; k < n; k += split == n ? 1 : 997) {
        const size_t i = size_t(k);
        const auto [d, keeps, second] =
            rule_result(rule, double(g[i]) / 3 * 1.5, double(stored(m0[i])), double(v0[i]));
        const double want = w0[i] - 0.5 * (double(0.1f) * d + double(0.01f) * w0[i]);
        ASSERT_NEAR(w[i], want, 1e-6 * (1 + std::abs(want) + std::abs(d)))
            << "rule " << rule << " element " << i;
        ASSERT_NEAR(loops::to_float(m[i]), keeps,
                    sizeof(T) == 2 ? 1e-5 + 0x1p-8 * std::abs(keeps) : 1e-6 * (1 + std::abs(keeps)))
            << "rule " << rule;
        ASSERT_NEAR(v[i], second, 1e-6 * (1 + second)) << "rule " << rule;
      }
      if (first.empty()) first = w;
      ASSERT_EQ(first, w) << "rule " << rule << ": bits depend on how elements are split";
    }
  }
}
TEST(UpdateOps, ElementRulesWithF32State) { element_rules<float>(); }
TEST(UpdateOps, ElementRulesWithBf16State) { element_rules<Bf16>(); }

TEST(UpdateOps, ClipGradientDecides) {
  TestQueue queue;
  std::vector<double> squares = doubles(normals(2000, "squares")), norm(1);
  for (double& s : squares) s = s * s;
  std::vector<int32_t> places = integers(700, 0, 2000, "places");
  double total = 0;
  for (int32_t p : places) total += squares[size_t(p)];
  const float root = float(std::sqrt(total));
  std::vector<float> decision(3);
  std::vector<double> finite{1e300, -2}, found(700);
  auto decide = [&](float bound, std::vector<float> expected) {
    run(ClipGradient{.decision = view32(decision),
                     .norm = view64(norm),
                     .squares = view64(squares),
                     .places = view(places.data(), 700),
                     .must_be_finite = view64(finite),
                     .found = view64(found),
                     .bound = bound},
        queue);
    EXPECT_EQ(decision, expected) << bound;
  };
  decide(0, {1, 1, 1});
  decide(1, {root, 1, 1});
  decide(root, {root, root, 1});  // a norm at the bound counts as clipped
  decide(2 * root, {1, 1, 1});
  EXPECT_EQ(norm[0], std::sqrt(total));
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], squares[size_t(places[i])]);
  for (double bad : {double(INFINITY), -double(INFINITY), double(NAN)}) {
    finite[1] = bad;
    decide(1, {root, 1, 0});
  }
  finite[1] = 0;
  squares[size_t(places[3])] = INFINITY;
  decide(0, {1, 1, 0});
  EXPECT_EQ(norm[0], INFINITY);
  squares[size_t(places[5])] = NAN;
  decide(0, {1, 1, 0});
}

// Clipping uses the norm without the scale, whose power of two cancels in every result. The scale
// depends on finite gradients.
TEST(UpdateOps, LossScaleMoves) {
  TestQueue queue;
  std::vector<float> state{8, 0, -1};
  std::vector<float> decision{1, 1, 1};
  std::vector<double> norm(1);
  const LossScaleRule rule{.growth = 2, .backoff = 0.25f, .least = 1.5f, .growth_interval = 3};
  auto step = [&](double scaled_norm, bool apply, std::vector<float> decided,
                  std::vector<float> moved, float bound = 0) {
    norm[0] = scaled_norm;
    decision = {1, 1, apply ? 1.0f : 0.0f};
    run(LossScale{.decision = view32(decision),
                  .norm = view64(norm),
                  .state = view32(state),
                  .bound = bound,
                  .rule = rule},
        queue);
    EXPECT_EQ(decision, decided) << scaled_norm;
    EXPECT_EQ(state, moved) << scaled_norm;
  };
  step(24, true, {8, 1, 1}, {8, 1, 8});
  EXPECT_EQ(norm[0], 3);
  step(24, true, {24, 2, 1}, {8, 2, 8}, 2);
  // A norm at the bound counts as clipped. This is the third finite step in a row.
  step(24, true, {24, 3, 1}, {16, 0, 8}, 3);
  step(24, true, {16, 1, 1}, {16, 1, 16}, 3);
  // The loss was not finite, which says nothing about the scale.
  step(24, false, {16, 1, 0}, {16, 1, 16}, 3);
  step(INFINITY, false, {16, 1, 0}, {4, 0, 16});
  step(8, true, {4, 1, 1}, {4, 1, 4});
  step(NAN, false, {4, 1, 0}, {1.5f, 0, 4});  // not below the minimum
  step(INFINITY, false, {1.5f, 1, 0}, {1.5f, 0, 1.5f});
  state = {0x1p99f, 2, 0};
  step(0, true, {0x1p99f, 1, 1}, {0x1p100f, 0, 0x1p99f});
  state = {0x1p100f, 2, 0};
  step(0, true, {0x1p100f, 1, 1}, {0x1p100f, 0, 0x1p100f});
}

// A decision in memory replaces the numbers. If the decision rejects the step, weights and state
// stay.
TEST(UpdateOps, DecisionsInMemory) {
  const int64_t n = 20001;
  const Factored shape{1, 59, 1, 339, 1, true};
  TestQueue queue(2);
  for (bool apply : {true, false}) {
    std::vector<float> decision{3, 1.5f, apply ? 1.0f : 0.0f};
    std::vector<float> results[2];
    for (bool in_memory : {false, true}) {
      const Clip clip = in_memory ? Clip{.decided = view32(decision)} : Clip{3, 1.5f};
      auto g = normals(n, "g"), w = normals(n, "w"), m = normals(n, "m"),
           v = std::vector<float>(size_t(n), 2.0f);
      if (!apply && in_memory) g[77] = NAN;
      std::vector<float> vx(339, 1.0f), vy(59, 1.0f), fx(339), fy(59);
      std::vector<double> sums(2), rms(1), over_x(339, 5.0), over_y(59, 7.0);
      if (!apply && in_memory) over_x[3] = NAN;
      Update u{.weights = view32(w),
               .gradient = view32(g),
               .sums = view64(sums),
               .clip = clip,
               .rate = 0.1f,
               .decay = 0.01f};
      AdafactorScaling scaling{.v = view32(v), .beta2 = 0.5f, .eps = 1e-3f};
      auto step = [&] {
        run(AdafactorFactors{view32(vx), view32(vy), view32(fx), view32(fy), view64(over_x),
                             view64(over_y), shape, clip, 0.5f, 1e-3f},
            queue);
        run(AdafactorRms{view64(rms), view32(g), clip, scaling}, queue);
        run(ApplyUpdate{u}, queue);
        run(AdamwUpdate{u, view32(m), view32(v), 0.75f, 0.25f, 0.875f, 0.125f, 0.4f, 0.3f, 1e-3f,
                        1e-4f},
            queue);
        run(AdafactorUpdate{.update = u,
                            .scaling = scaling,
                            .momentum = view32(m),
                            .keep = 0.875f,
                            .add = 0.1f},
            queue);
      };
      if (apply || in_memory) step();
      if (!apply && in_memory) {
        double squares = 0;
        for (float x : w) squares += double(x) * double(x);
        EXPECT_NEAR(sums[0], squares, 1e-12 * squares);
        EXPECT_EQ(sums[1], 0);
        EXPECT_EQ(rms[0], 0);
      }
      for (const auto* part : {&w, &m, &v, &vx, &vy})
        results[in_memory].insert(results[in_memory].end(), part->begin(), part->end());
    }
    EXPECT_TRUE(same_bits(results[0], results[1])) << "apply " << apply;
  }
}

TEST(UpdateOps, RefuseWrongShapes) {
  Queue queue(device::Kind::plan);
  std::vector<float> x(8);
  std::vector<double> s(2);
  EXPECT_THROW(run(SquareSums{view64(s), view32(x)}, queue), base::Error);
  EXPECT_THROW(run(ApplyUpdate{{view32(x), view32(x).slice(0, 7), view64(s)}}, queue), base::Error);
  EXPECT_THROW(run(MomentumUpdate{{view32(x), view32(x), view64(s)}, view32(x).slice(0, 3)}, queue),
               base::Error);
  EXPECT_THROW(run(AdafactorUpdate{{view32(x), view32(x), view64(s)}, {}}, queue), base::Error);
}

}  // namespace
