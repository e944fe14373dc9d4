// SPDX-License-Identifier: Apache-2.0
// Tests the engine's part around every optimizer: order of transformations, clipping, freezing,
// norms, finiteness.
#include "optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "optim/adafactor.hpp"
#include "optim/sgd.hpp"
#include "rig.hpp"

extern std::atomic<int64_t> allocations_made;  // allocation_count.cpp

namespace {

using rig::Job;
using rig::parameter;
using rig::Tensor;

Job sgd(std::vector<shard::Parameter> parameters) {
  Job s;
  s.parameters = std::move(parameters);
  s.options.kind = "sgd";
  s.options.learning_rate = 0.5;
  return s;
}

TEST(Optimizer, OrderOfTransformations) {
  Job s = sgd({parameter("w", {2}), parameter("v", {2})});
  s.options.weight_decay = 0.25;
  s.options.clip_norm = 2;
  s.policies = {{false, 3, 2, 1}, {false, 1, 0, 0}};
  s.schedules = {optim::Schedule(),
                 optim::Schedule([](int64_t count) { return float(count) * 0.125f; })};
  s.groups = {"w", "[wv]", "nothing"};
  rig::Rig r(s);
  r.set_weights({{"w", {1, -2}}, {"v", {4, 0}}});
  r.set_gradients({{"w", {2, 4}}, {"v", {-4, 8}}});  // norm 10, scaled by 0.2
  const auto& [seen, done] = r.step(3);              // schedule sees 2
  EXPECT_TRUE(seen.applied);
  EXPECT_DOUBLE_EQ(seen.gradients.global, 10);
  EXPECT_DOUBLE_EQ(seen.gradients.per_parameter[0], std::sqrt(20.0));
  EXPECT_DOUBLE_EQ(seen.gradients.per_group[1], 10);
  EXPECT_DOUBLE_EQ(seen.gradients.per_group[2], 0);
  EXPECT_FLOAT_EQ(float(seen.clip), 0.2f);
  EXPECT_EQ(done.schedules, (std::vector<float>{1, 0.25f}));
  auto w = r.weights();
  // The rate must not change the decay: u = -schedule * (rate * lr_scale * g + weight_decay *
  // decay_scale * w).
  EXPECT_FLOAT_EQ(w["w"][0], 1 - 0.25f * (0.5f * 3 * 0.4f + 0.25f * 2 * 1));
  EXPECT_FLOAT_EQ(w["w"][1], -2 - 0.25f * (0.5f * 3 * 0.8f - 0.25f * 2 * 2));
  EXPECT_FLOAT_EQ(w["v"][0], 4 + 0.5f * 0.8f);
  EXPECT_FLOAT_EQ(w["v"][1], -0.5f * 1.6f);
  double squares = 0, moved = 0;
  const float old_w[4] = {1, -2, 4, 0}, new_w[4] = {w["w"][0], w["w"][1], w["v"][0], w["v"][1]};
  for (int i = 0; i < 4; ++i) {
    squares += double(new_w[i]) * new_w[i];
    moved += std::pow(double(new_w[i]) - old_w[i], 2);
  }
  EXPECT_NEAR(done.parameters.global, std::sqrt(squares), 1e-12);
  EXPECT_NEAR(done.updates.global, std::sqrt(moved), 1e-6);
  EXPECT_NEAR(done.parameters.per_group[0], std::hypot(new_w[0], new_w[1]), 1e-6);
}

// A frozen tensor has no gradient and no sum. The sums of later tensors must keep their places.
TEST(Optimizer, NormsBesideFrozenTensors) {
  const Tensor w[4] = {{1, 2}, {-3, 4}, {5, 12, 0}, {8}}, g[4] = {{3, 4}, {6, 8}, {2, 3, 6}, {7}};
  const char* names[4] = {"a", "b", "c", "d"};
  auto norm = [](const Tensor& t) {
    double square = 0;
    for (float x : t) square += double(x) * double(x);
    return std::sqrt(square);
  };
  for (const char* kind : {"sgd", "adafactor"})
    for (int mask = 0; mask < 15; ++mask)
      for (int fsdp : {1, 2}) {
        SCOPED_TRACE(fmt::format("{}, frozen: {:04b}, fsdp {}", kind, mask, fsdp));
        Job s = sgd({});
        if (kind != std::string("sgd")) {
          s.options = {};
          s.options.method = std::make_shared<optim::AdafactorOptions>();
        }
        s.options.learning_rate = 0.5;
        s.fsdp = fsdp;
        s.cuts = fsdp;
        s.groups = {"[ab]", "[cd]"};
        rig::Tensors weights, gradients;
        double squares[2] = {};
        for (int i = 0; i < 4; ++i) {
          const bool frozen = (mask >> i & 1) != 0;
          s.parameters.push_back(parameter(names[i], {int64_t(w[i].size())}, i / 3));
          s.policies.push_back({.frozen = frozen});
          weights[names[i]] = w[i];
          if (!frozen) {
            gradients[names[i]] = g[i];
            squares[i / 2] += norm(g[i]) * norm(g[i]);
          }
        }
        rig::Rig r(s);
        r.set_weights(weights);
        const auto& [seen, done] = r.step(1, gradients);
        rig::Tensors after = r.weights();
        for (size_t i = 0; i < 4; ++i) {
          const bool frozen = (mask >> i & 1) != 0;
          Tensor moved = after[names[i]];
          for (size_t e = 0; e < moved.size(); ++e) moved[e] -= w[i][e];
          EXPECT_NEAR(seen.gradients.per_parameter[i], frozen ? 0 : norm(g[i]), 1e-9) << names[i];
          EXPECT_NEAR(done.parameters.per_parameter[i], norm(after[names[i]]), 1e-9) << names[i];
          EXPECT_NEAR(done.updates.per_parameter[i], norm(moved), 1e-5) << names[i];
          EXPECT_EQ(norm(moved) == 0, frozen) << names[i];
        }
        for (size_t group : {0, 1})
          EXPECT_NEAR(seen.gradients.per_group[group], std::sqrt(squares[group]), 1e-9);
        EXPECT_NEAR(seen.gradients.global, std::sqrt(squares[0] + squares[1]), 1e-9);
      }
}

TEST(Optimizer, ScheduleZeroChangesNothingButState) {
  Job s;
  s.parameters = {parameter("w", {40, 40}), parameter("b", {40})};
  s.options.learning_rate = 1;
  s.options.weight_decay = 1;
  s.schedules = {optim::Schedule([](int64_t count) { return float(count); })};
  rig::Rig r(s);
  const rig::Tensors before{{"w", Tensor(1600, 0.5f)}, {"b", Tensor(40, -1.0f)}};
  r.set_weights(before);
  r.step(1, {{"w", Tensor(1600, 2.0f)}, {"b", Tensor(40, 3.0f)}});
  EXPECT_EQ(r.weights(), before);
  EXPECT_EQ(r.report(0).updates.global, 0);
  for (auto& [name, t] : r.state())
    for (float x : t) EXPECT_NE(x, 0) << name;
}

TEST(Optimizer, ClipsFromTheBoundOn) {
  Job s = sgd({parameter("w", {2})});
  s.options.clip_norm = 5;
  rig::Rig r(s);
  r.set_gradients({{"w", {3, 4}}});  // exactly at the bound: g / 5 * 5
  EXPECT_EQ(r.step(1).gradients.clip, 1);
  r.set_gradients({{"w", {3, std::nextafter(4.0f, 0.0f)}}});
  EXPECT_EQ(r.step(2).gradients.clip, 1);
  r.set_gradients({{"w", {6, 8}}});
  r.set_weights({{"w", {0, 0}}});
  EXPECT_FLOAT_EQ(float(r.step(3).gradients.clip), 0.5f);
  EXPECT_EQ(r.weights()["w"], (Tensor{-0.5f * (6.0f / 10 * 5), -0.5f * (8.0f / 10 * 5)}));
  EXPECT_DOUBLE_EQ(r.inspection(0).gradients.global, 10) << "the norms are those of raw gradients";
}

// Division comes before multiplication, as in the published code, also at the bound itself.
TEST(Optimizer, ClipAtTheBoundDividesAndMultiplies) {
  const Tensor g{0.1f, 0.7f, 0.3f};
  Job s = sgd({parameter("w", {3})});
  s.options.learning_rate = 1;
  double square = 0;
  for (float x : g) square += double(x) * double(x);
  const float norm = float(std::sqrt(square));
  s.options.clip_norm = norm;
  rig::Rig r(s);
  r.step(1, {{"w", g}});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(r.weights()["w"][i], -(g[i] / norm * norm));
}

TEST(Optimizer, ClippingReachesAdafactorsRowsAndColumns) {
  auto moments = [](float scale, double clip) {
    Job s;
    s.parameters = {parameter("w", {40, 40}), parameter("b", {7})};
    s.options.learning_rate = 1;
    s.options.clip_norm = clip;
    rig::Rig r(s);
    Tensor w(1600), b(7);
    for (size_t i = 0; i < w.size(); ++i) w[i] = scale * float(1 + i % 13);
    for (size_t i = 0; i < b.size(); ++i) b[i] = scale * float(i);
    r.step(1, {{"w", w}, {"b", b}});
    return std::pair{r.state(), r.inspection(0).gradients.global};
  };
  auto [small, norm] = moments(1, 0);
  auto [clipped, raw] = moments(64, norm);
  EXPECT_DOUBLE_EQ(raw, 64 * norm);
  for (auto& [name, t] : small)
    for (size_t i = 0; i < t.size(); ++i) EXPECT_NEAR(t[i], clipped[name][i], 1e-6 * t[i]) << name;
}

TEST(Optimizer, ZeroGradientsMoveNothing) {
  for (double threshold : {0.0, 1.0}) {
    Job s;
    s.parameters = {parameter("w", {40, 40}), parameter("heads", {40, 2, 33}), parameter("b", {7})};
    auto m = std::make_shared<optim::AdafactorOptions>();
    m->clipping_threshold = threshold;
    s.options.method = m;
    s.options.learning_rate = 1;
    s.options.clip_norm = 1;
    rig::Rig r(s);
    for (int step = 1; step <= 3; ++step) r.step(step, {});
    for (auto& [path, w] : r.weights())
      for (float x : w) ASSERT_EQ(x, 0) << path;
    for (auto& [name, t] : r.state())
      for (float x : t)
        ASSERT_TRUE(name.find("momentum") == name.npos ? std::abs(x / 1e-30f - 1) < 1e-6 : x == 0)
            << name << " " << x;
  }
}

TEST(Optimizer, FindsNonFiniteGradientsOnAnyRank) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const char* where : {"w", "b"}) {
      Job s;
      s.parameters = {parameter("w", {64, 64}), parameter("b", {5})};
      s.options.learning_rate = 1;
      s.options.clip_norm = 1;
      s.fsdp = s.cuts = 2;
      rig::Rig r(s);
      rig::Tensors g{{"w", Tensor(4096, 1.0f)}, {"b", Tensor(5, 1.0f)}};
      g[where].back() = bad;
      r.step(1, g);
      for (int rank : {0, 1}) EXPECT_FALSE(r.inspection(rank).applied);
      EXPECT_FALSE(std::isfinite(r.inspection(0).gradients.per_parameter[where[0] == 'w' ? 0 : 1]));
      EXPECT_TRUE(std::isfinite(r.inspection(0).gradients.per_parameter[where[0] == 'w' ? 1 : 0]));
      // A step that is not applied changes no state.
      for (auto& [name, t] : r.state())
        for (float x : t) ASSERT_EQ(x, 0) << name;
      g[where].back() = 1e30f;  // finite, but its square overflows float
      EXPECT_TRUE(r.step(2, g).gradients.applied);
      EXPECT_NEAR(r.inspection(0).gradients.global, 1e30, 1e24);
    }
}

// A step that is not finite leaves weights and state unchanged, for every optimizer. The next step
// continues as if it had not happened.
TEST(Optimizer, AStepThatIsNotFiniteIsNotApplied) {
  for (const char* kind :
       {"adafactor", "adafactor_clipped", "adamw", "lion", "momentum", "muon", "rmsprop", "sgd"})
    for (bool by_loss : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, by loss {}", kind, by_loss));
      Job s;
      s.parameters = {parameter("w", {40, 40}), parameter("b", {7})};
      s.options.kind = kind;
      s.options.learning_rate = 0.1;
      s.options.weight_decay = 0.1;
      s.options.clip_norm = 1;
      if (s.options.kind == "adafactor_clipped") {
        auto m = std::make_shared<optim::AdafactorOptions>();
        m->clipping_threshold = 1;
        s.options.method = m;
        s.options.kind = "adafactor";
      }
      const rig::Tensors w{{"w", Tensor(1600, 0.5f)}, {"b", Tensor(7, -1.0f)}};
      rig::Tensors g{{"w", Tensor(1600, 0.25f)}, {"b", Tensor(7, 2.0f)}}, bad = g;
      rig::Rig undisturbed(s), r(s);
      for (rig::Rig* one : {&undisturbed, &r}) {
        one->set_weights(w);
        one->set_loss(2);
        one->step(1, g);
      }
      const rig::Tensors weights = r.weights(), state = r.state();
      ASSERT_NE(weights, w);
      if (by_loss)
        r.set_loss(INFINITY);
      else
        bad["b"][3] = NAN;
      const optim::Report& report = r.step(2, bad);
      EXPECT_FALSE(report.gradients.applied);
      EXPECT_EQ(report.update.updates.global, 0);
      double square = 0;
      for (const auto& [name, t] : weights)
        for (float x : t) square += double(x) * double(x);
      EXPECT_NEAR(report.update.parameters.global, std::sqrt(square), 1e-9);
      EXPECT_EQ(r.weights(), weights);
      EXPECT_EQ(r.state(), state);
      for (rig::Rig* one : {&undisturbed, &r}) {
        one->set_loss(2);
        one->step(3, g);
      }
      EXPECT_TRUE(r.inspection(0).applied);
      EXPECT_EQ(r.weights(), undisturbed.weights());
      EXPECT_EQ(r.state(), undisturbed.state());
    }
}

// The report of a step may be read when the next step is already queued.
TEST(Optimizer, ReportsComeOneStepLater) {
  Job s = sgd({parameter("w", {2})});
  s.schedules = {optim::Schedule([](int64_t count) { return float(count); })};
  rig::Rig r(s);
  optim::Optimizer& optimizer = r.optimizer(0);
  for (int64_t step = 1; step <= 5; ++step) {
    r.set_gradients({{"w", {float(step), 0}}});
    optimizer.inspect(step, r.units(0));
    optimizer.apply(step);
    if (step == 1) continue;
    const optim::Report& before = optimizer.report(step - 1);
    EXPECT_EQ(before.gradients.gradients.global, double(step - 1));
    EXPECT_EQ(before.update.updates.global, 0.5 * double((step - 1) * (step - 2)));
    EXPECT_EQ(before.update.schedules[0], float(step - 2));
  }
  EXPECT_EQ(optimizer.report(5).gradients.gradients.global, 5);
}

TEST(Optimizer, ApplyNeedsItsInspection) {
  rig::Rig r(sgd({parameter("w", {2})}));
  EXPECT_THROW(r.optimizer(0).apply(1), base::Error);
  r.optimizer(0).inspect(1, r.units(0));
  EXPECT_THROW(r.optimizer(0).apply(2), base::Error);
  r.optimizer(0).apply(1);
  EXPECT_THROW(r.optimizer(0).apply(1), base::Error);
}

Tensor times(double factor, Tensor t) {
  for (float& x : t) x *= float(factor);
  return t;
}

// fp16's gradients are multiplied by a power of two, which must not change one bit of any report or
// state.
TEST(Optimizer, ALossScaleDropsOut) {
  for (const char* kind : {"adafactor", "adamw", "lion", "momentum", "muon", "rmsprop", "sgd"})
    for (double clip : {0.0, 3.0}) {
      rig::Tensors weights[2], states[2];
      for (bool scaled : {false, true}) {
        Job s;
        s.parameters = {parameter("w", {70, 130}), parameter("b", {700})};
        s.options.kind = kind;
        s.options.learning_rate = 0.1;
        s.options.weight_decay = 0.01;
        s.options.clip_norm = clip;
        if (scaled) s.loss_scale = optim::LossScaleOptions{.init = 1024, .growth_interval = 2};
        rig::Rig r(s);
        r.set_weights({{"w", Tensor(9100, 0.25f)}, {"b", Tensor(700, -1.0f)}});
        for (int step = 1; step <= 4; ++step) {
          const double scale = scaled ? step <= 2 ? 1024 : 2048 : 1;
          r.step(step, {{"w", times(scale, Tensor(9100, 0.03f * float(step)))},
                        {"b", times(scale, Tensor(700, -0.7f))}});
          EXPECT_EQ(r.inspection(0).loss_scale, scaled ? scale : 0);
          const double square =
              9100 * std::pow(double(0.03f * float(step)), 2) + 700 * std::pow(double(0.7f), 2);
          EXPECT_NEAR(r.inspection(0).gradients.global, std::sqrt(square), 1e-12 * square);
          EXPECT_EQ(r.inspection(0).clip<1, clip> 0);
        }
        weights[scaled] = r.weights();
        states[scaled] = r.state();
      }
      EXPECT_EQ(weights[0], weights[1]) << kind;
      EXPECT_EQ(states[0], states[1]) << kind;
    }
}

// An overflow on one rank counts on both: neither updates, and both continue with the same scale.
TEST(Optimizer, AnOverflowOnOneRankIsEverybodys) {
  Job s = sgd({parameter("w", {64})});
  s.fsdp = s.cuts = 2;
  s.options.clip_norm = 1e9;
  s.loss_scale = optim::LossScaleOptions{.growth_interval = 2};
  rig::Rig r(s);
  Tensor g(64, 65536.0f);
  r.set_weights({{"w", Tensor(64, 0.0f)}});
  g.back() = std::numeric_limits<float>::infinity();  // on the second rank
  r.set_gradients({{"w", g}});
  r.step(1);
  for (int rank : {0, 1}) {
    EXPECT_FALSE(r.inspection(rank).applied);
    EXPECT_EQ(r.inspection(rank).loss_scale, 65536);
    EXPECT_EQ(r.inspection(rank).next_loss_scale, 32768);
    EXPECT_EQ(r.optimizer(rank).scale_state().scale, 32768);
  }
  for (int step = 2; step <= 3; ++step) {
    r.step(step, {{"w", Tensor(64, 32768.0f)}});
    EXPECT_EQ(r.inspection(1).gradients.global, 8);
    EXPECT_EQ(r.weights()["w"], Tensor(64, -0.5f * float(step - 1)));
  }
  for (int rank : {0, 1}) EXPECT_EQ(r.inspection(rank).next_loss_scale, 65536);
  r.optimizer(0).set_scale_state({4, 1});  // as a restore does
  EXPECT_EQ(r.optimizer(0).scale_state().scale, 4);
  EXPECT_EQ(r.optimizer(0).scale_state().updates, 1);
}

TEST(Optimizer, FrozenParametersHaveNoStateAndNoShareInTheNorm) {
  Job s;
  s.parameters = {parameter("w", {40, 40}), parameter("f", {40, 40}), parameter("g", {9}, 1)};
  s.policies = {{}, {true, 1, 0, 0}, {true, 1, 0, 0}};
  s.options.learning_rate = 1;
  s.options.weight_decay = 1;
  s.options.clip_norm = 1;
  for (auto& p : s.policies) p.decay_scale = 1;
  rig::Rig r(s);
  r.set_weights({{"w", Tensor(1600, 0.0f)}, {"f", Tensor(1600, 0.5f)}, {"g", Tensor(9, 2.0f)}});
  r.step(1, {{"w", Tensor(1600, 1.0f)}, {"f", Tensor(1600, NAN)}, {"g", Tensor(9, 7.0f)}});
  EXPECT_DOUBLE_EQ(r.inspection(0).gradients.global, 40);
  EXPECT_EQ(r.weights()["f"], Tensor(1600, 0.5f));
  EXPECT_EQ(r.weights()["g"], Tensor(9, 2.0f));
  EXPECT_DOUBLE_EQ(r.report(0).parameters.per_parameter[1], 20);
  EXPECT_DOUBLE_EQ(r.report(0).parameters.per_parameter[2], 6);
  EXPECT_EQ(r.report(0).updates.per_parameter[1], 0);
  for (auto& [name, t] : r.state()) EXPECT_TRUE(name.ends_with("/w")) << name;
}

// Muon is left out: products of the library allocate.
TEST(Optimizer, AllocatesNothingFromTheThirdStepOn) {
  for (const char* kind : {"adafactor", "adamw", "lion", "momentum", "rmsprop", "sgd", "larc"}) {
    Job s;
    s.parameters = {parameter("w", {70, 130}), parameter("heads", {40, 2, 33}),
                    parameter("b", {700})};
    s.options.kind = kind;
    if (kind == std::string("larc")) {
      s.options.kind = "sgd";
      s.options.trust.emplace();
      s.options.clip_type = optim::ClipType::infinity;
      s.parameters[0].unit_rows = true;
    }
    s.options.learning_rate = 1;
    s.options.clip_norm = 1;
    s.cuts = 8;
    s.threads = 2;
    rig::Rig r(s);
    const rig::Tensors g{{"w", Tensor(9100, 1.0f)}};
    for (int step = 1; step <= 2; ++step) r.step(step, g);
    const size_t scratch = r.queue(0).scratch_bytes();
    const int64_t before = allocations_made;
    r.run_in_place(3);
    EXPECT_EQ(allocations_made, before) << kind;
    EXPECT_EQ(r.queue(0).scratch_bytes(), scratch);
  }
}

}  // namespace
