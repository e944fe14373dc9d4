// SPDX-License-Identifier: Apache-2.0
// Tests what published self-supervised recipes ask of the engine around optimizers: forms and
// schedules of weight decay, gradients dropped until a step, limits of the gradient, unit rows.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/adafactor.hpp"
#include "optim/adamw.hpp"
#include "optim/rmsprop.hpp"
#include "optim/sgd.hpp"
#include "rig.hpp"

namespace {

using rig::Job;
using rig::parameter;
using rig::Tensor;
using rig::Tensors;

Tensor numbers(size_t count, const std::string& name) {
  Tensor t(count);
  base::Stream stream(11, name);
  for (size_t i = 0; i < count; ++i) t[i] = float(stream.normal(i));
  return t;
}

Job job(const std::string& kind, double rate = 0.5) {
  Job s;
  s.parameters = {parameter("w", {6, 40}), parameter("b", {9}, 1)};
  s.options.kind = kind;
  s.options.learning_rate = rate;
  return s;
}

Tensors gradients_of(int64_t step) {
  return {{"w", numbers(240, "gw" + std::to_string(step))},
          {"b", numbers(9, "gb" + std::to_string(step))}};
}

Tensors weights() { return {{"w", numbers(240, "w")}, {"b", numbers(9, "b")}}; }

// PyTorch's AdamW: p (1 - a d), then the direction times the rate.
TEST(Published, DecayTimesTheRate) {
  Job s = job("adamw", 0.125);
  s.options.weight_decay = 0.25;
  s.options.decay_form = optim::DecayForm::rate;
  s.policies = {{.lr_scale = 2, .decay_scale = 1}, {.lr_scale = 1, .decay_scale = 0}};
  s.schedules = {optim::Schedule([](int64_t) { return 0.5f; })};
  rig::Rig r(s);
  r.set_weights(weights());
  r.step(1, gradients_of(1));
  const Tensor before = weights()["w"], after = r.weights()["w"], g = gradients_of(1)["w"];
  for (size_t i = 0; i < after.size(); ++i) {
    const double rate = 0.125 * 2 * 0.5, direction = double(g[i]) / (std::abs(double(g[i])) + 1e-8);
    ASSERT_NEAR(after[i], double(before[i]) * (1 - rate * 0.25) - rate * direction, 1e-6);
  }
}

TEST(Published, DecaySchedules) {
  Job s = job("sgd");
  s.options.weight_decay = 0.5;
  s.schedules = {optim::Schedule(),
                 optim::Schedule([](int64_t made) { return float(made) * 0.25f; })};
  s.policies = {{.decay_scale = 1, .decay_schedule = 1}, {.decay_scale = 1}};
  rig::Rig r(s);
  r.set_weights(weights());
  r.step(3, {{"w", Tensor(240, 0.0f)}, {"b", Tensor(9, 0.0f)}});
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_FLOAT_EQ(r.weights()["w"][i], weights()["w"][i] * (1 - 0.5f * 0.5f));
    EXPECT_FLOAT_EQ(r.weights()["b"][i], weights()["b"][i] * 0.5f);
  }
}

// PyTorch's RMSprop, decay within the gradient:
//   v = alpha v + (1 - alpha) g^2, a = alpha a + (1 - alpha) g
//   p -= rate buf, where buf = momentum buf + g / (sqrt(v - a^2) + eps)
TEST(Published, Rmsprop) {
  const optim::RmspropOptions published;
  EXPECT_EQ(published.alpha, 0.99);
  EXPECT_EQ(published.eps, 1e-8);
  EXPECT_TRUE(published.momentum == 0 && !published.centered);
  for (const double momentum : {0.0, 0.5})
    for (const bool centered : {false, true}) {
      SCOPED_TRACE(testing::Message() << momentum << " " << centered);
      auto method = std::make_shared<optim::RmspropOptions>();
      method->momentum = momentum;
      method->centered = centered;
      Job s = job("rmsprop", 0.125);
      s.options.method = method;
      s.options.weight_decay = 0.25;
      s.options.decay_form = optim::DecayForm::gradient;
      s.policies = {{.decay_scale = 1}, {.decay_scale = 1}};
      rig::Rig r(s);
      r.set_weights(weights());
      std::vector<double> p(240), v(240), a(240), buf(240);
      for (size_t i = 0; i < p.size(); ++i) p[i] = double(weights()["w"][i]);
      for (int64_t step = 1; step <= 3; ++step) {
        r.step(step, gradients_of(step));
        for (size_t i = 0; i < p.size(); ++i) {
          const double g = double(gradients_of(step)["w"][i]) + 0.25 * p[i];
          v[i] = 0.99 * v[i] + 0.01 * g * g;
          if (centered) a[i] += 0.01 * (g - a[i]);
          buf[i] = momentum * buf[i] + g / (std::sqrt(v[i] - a[i] * a[i]) + 1e-8);
          p[i] -= 0.125 * buf[i];
        }
      }
      const Tensor after = r.weights()["w"];
      for (size_t i = 0; i < p.size(); ++i) ASSERT_NEAR(after[i], p[i], 1e-3) << i;
      EXPECT_EQ(r.state().size(), 2 * size_t(1 + (momentum > 0) + centered));
    }
}

// Until that step the tensor's weights, state and norm do not change. Then the tensor continues as
// if the run began there, whatever the other tensors did.
TEST(Published, GradientsDroppedUntilAStep) {
  for (const char* kind :
       {"adafactor", "adamw", "lion", "momentum", "muon", "rmsprop", "sgd", "larc"})
    for (int fsdp : {1, 2}) {
      SCOPED_TRACE(kind);
      Job s = job(kind, 0.1);
      if (kind == std::string("larc")) {
        s.options.kind = "sgd";
        auto m = std::make_shared<optim::SgdOptions>();
        m->momentum = 0.9;
        m->dampening = 0.5;  // the first gradient is not dampened
        s.options.method = m;
        s.options.trust.emplace();
        s.options.decay_form = optim::DecayForm::gradient;
      }
      if (kind == std::string("adafactor")) {
        auto m = std::make_shared<optim::AdafactorOptions>();
        m->factor_min = 2;
        m->clipping_threshold = 1;
        s.options.method = m;
      }
      s.options.weight_decay = 0.1;
      s.fsdp = s.cuts = fsdp;
      for (bool late : {true, false})
        s.policies.push_back({.decay_scale = 1, .frozen_steps = 3 * late});
      rig::Rig r(s);
      r.set_weights(weights());
      for (int64_t step = 1; step <= 3; ++step) {
        Tensors g = gradients_of(step);
        g["w"][0] = NAN;
        const optim::Report& report = r.step(step, g);
        EXPECT_TRUE(report.gradients.applied);
        EXPECT_EQ(report.gradients.gradients.per_parameter[0], 0);
        EXPECT_EQ(report.update.updates.per_parameter[0], 0);
        EXPECT_GT(report.update.parameters.per_parameter[0], 1);
        EXPECT_EQ(r.weights()["w"], weights()["w"]);
        EXPECT_NE(r.weights()["b"], weights()["b"]);
      }
      for (const auto& [name, t] : r.state()) {
        if (!name.ends_with("/w")) continue;
        EXPECT_EQ(t, Tensor(t.size(), 0.0f)) << name;
      }

      Job fresh = s;
      for (optim::ParameterPolicy& p : fresh.policies) p.frozen_steps = 0;
      rig::Rig other(fresh);
      other.set_weights(weights());
      for (int64_t step = 1; step <= 3; ++step) {
        r.step(3 + step, gradients_of(3 + step));
        other.step(step, gradients_of(3 + step));
      }
      EXPECT_EQ(r.weights()["w"], other.weights()["w"]);
      Tensors mine = r.state(), theirs = other.state();
      for (const auto& [name, t] : mine) {
        if (!name.ends_with("/w")) continue;
        EXPECT_EQ(t, theirs.at(name)) << name;
      }
    }
}

TEST(Published, DropsLargeGradients) {
  for (bool scaled : {false, true}) {
    Job s = job("momentum");
    s.options.drop_norm = 10;
    if (scaled) s.loss_scale = optim::LossScaleOptions{.init = 4};
    const float scale = scaled ? 4 : 1;
    rig::Rig r(s);
    r.set_weights(weights());
    Tensors g{{"w", Tensor(240, 0.0f)}, {"b", Tensor(9, 0.0f)}};
    g["b"][0] = 10 * scale;
    const optim::Report& dropped = r.step(1, g);
    EXPECT_FALSE(dropped.gradients.applied);
    EXPECT_EQ(dropped.gradients.gradients.global, 10);
    EXPECT_EQ(dropped.gradients.next_loss_scale, scaled ? 4 : 0) << "no overflow";
    EXPECT_EQ(r.weights(), weights());
    g["b"][0] = 9.5f * scale;
    EXPECT_TRUE(r.step(2, g).gradients.applied);
    EXPECT_NE(r.weights()["b"], weights()["b"]);
  }
}

TEST(Published, ClipsByTheLargestValueOfAllRanks) {
  for (int fsdp : {1, 2, 3}) {
    Job s = job("sgd", 1);
    s.options.clip_norm = 2;
    s.options.clip_type = optim::ClipType::infinity;
    s.fsdp = s.cuts = fsdp;
    rig::Rig r(s);
    r.set_weights({{"w", Tensor(240, 0.0f)}, {"b", Tensor(9, 0.0f)}});
    Tensors g = gradients_of(1);
    g["w"][239] = -8;  // on the last rank
    r.step(1, g);
    for (int rank = 0; rank < fsdp; ++rank) EXPECT_EQ(r.inspection(rank).clip, 0.25);
    EXPECT_EQ(r.weights()["w"][239], 2);
    EXPECT_EQ(r.weights()["b"][3], -(g["b"][3] / 8 * 2));
    g["w"][239] = 1;
    for (Tensor* t : {&g["w"], &g["b"]})
      for (float& x : *t) x = std::clamp(x, -1.5f, 1.5f);
    r.step(2, g);
    EXPECT_EQ(r.inspection(0).clip, 1) << "the 2-norm is far above the bound";
  }
}

TEST(Published, RowsHaveUnitLengthAfterUpdates) {
  auto length = [](const Tensor& w, size_t row) {
    double square = 0;
    for (size_t i = row * 40; i < (row + 1) * 40; ++i) square += double(w[i]) * double(w[i]);
    return std::sqrt(square);
  };
  for (int64_t frozen : {0, 2})
    for (int fsdp : {1, 2, 4}) {
      Job s = job("sgd");
      s.parameters[0].unit_rows = true;
      s.policies = {{.frozen_steps = frozen}, {}};
      s.fsdp = fsdp;
      s.cuts = 4;  // cuts divide rows of 40 elements
      rig::Rig r(s);
      r.set_weights(weights());
      Tensors g = gradients_of(1);
      g["b"][0] = INFINITY;
      r.step(1, g);
      EXPECT_EQ(r.weights(), weights()) << "a step that is not applied";
      EXPECT_NE(r.report(0).parameters.per_parameter[0], std::sqrt(6.0));
      r.step(2, gradients_of(2));
      EXPECT_EQ(r.report(0).parameters.per_parameter[0], std::sqrt(6.0));
      Tensor after = r.weights()["w"], expected = weights()["w"];
      const Tensor moved = gradients_of(2)["w"];
      if (frozen == 0)
        for (size_t i = 0; i < 240; ++i) expected[i] -= 0.5f * moved[i];
      for (size_t row = 0; row < 6; ++row) {
        EXPECT_NEAR(length(after, row), 1, 1e-6);
        for (size_t i = row * 40; i < (row + 1) * 40; ++i)
          ASSERT_NEAR(after[i], expected[i] / length(expected, row), 1e-6);
      }
    }
}

TEST(Published, AdamWithTheLargestMoment) {
  Job s = job("adamw", 0.1);
  auto m = std::make_shared<optim::AdamwOptions>();
  m->amsgrad = true;
  s.options.method = m;
  rig::Rig r(s);
  for (int64_t step = 1; step <= 4; ++step) {
    Tensors g = gradients_of(step);
    for (float& x : g["w"]) x *= step == 1 ? 10.0f : 0.1f;
    r.step(step, g);
  }
  Tensors state = r.state();
  const Tensor &now = state.at("/optimizer/adamw/nu/w"),
               &most = state.at("/optimizer/adamw/nu_max/w");
  for (size_t i = 0; i < now.size(); ++i) EXPECT_GE(most[i], now[i]);
  EXPECT_NE(now, most);
}

}  // namespace
