// SPDX-License-Identifier: Apache-2.0
// Tests the guard: it keeps steps, skips them, rewinds the run or ends it.
#include "train/guard.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace train {
namespace {

using Action = Guard::Action;
using Nonfinite = GuardOptions::Nonfinite;

const std::vector<shard::Parameter> kParameters = [] {
  std::vector<shard::Parameter> out(2);
  out[0].path = "encoder/a";
  out[1].path = "head/b";
  return out;
}();

step::StepReport sound() {
  step::StepReport r;
  r.measures = {2.5};
  r.gradients.gradients.per_parameter = {1, 2};
  r.update.parameters.per_parameter = {1, 2};
  return r;
}

// Returns a report with a gradient that is not finite, so nothing was updated.
step::StepReport bad_gradient() {
  step::StepReport r = sound();
  r.finite = false;
  r.gradients.gradients.per_parameter[1] = INFINITY;
  r.gradients.gradients.global = INFINITY;
  return r;
}

// Returns a report with parameters that are not finite after an update of finite gradients.
step::StepReport bad_update() {
  step::StepReport r = sound();
  r.update.parameters.global = NAN;
  r.update.parameters.per_parameter[0] = NAN;
  return r;
}

step::StepReport overflow() {
  step::StepReport r = bad_gradient();
  r.gradients.loss_scale = 64;
  r.gradients.next_loss_scale = 32;
  return r;
}

// Returns a report with a finite gradient that optimizer.drop_norm found too large.
step::StepReport dropped() {
  step::StepReport r = sound();
  r.finite = false;
  r.gradients.gradients.global = 12.5;
  return r;
}

GuardOptions options(Nonfinite nonfinite, int64_t max_skips = 2) {
  GuardOptions o;
  o.nonfinite = nonfinite;
  o.max_skips = max_skips;
  return o;
}

// Dropped steps are wanted, whatever guard.nonfinite says, but not too many in a row.
TEST(Guard, DropsStepsOfLargeGradients) {
  for (Nonfinite nonfinite : {Nonfinite::stop, Nonfinite::skip, Nonfinite::rewind}) {
    const GuardOptions o = options(nonfinite, 2);
    Guard guard(o);
    for (int64_t step : {1, 2, 4, 5}) {
      const Guard::Verdict v = guard.judge(step, dropped(), kParameters);
      EXPECT_EQ(v.action, Action::drop);
      EXPECT_NE(v.problem.find("l2_grads=12.5"), std::string::npos) << v.problem;
      if (step == 2) guard.judge(3, sound(), kParameters);
    }
    const Guard::Verdict last = guard.judge(6, dropped(), kParameters);
    EXPECT_EQ(last.action, Action::give_up);
    EXPECT_NE(last.problem.find("drop_norm"), std::string::npos) << last.problem;
    EXPECT_NE(last.problem.find("3 times in a row"), std::string::npos) << last.problem;
  }
}

TEST(Guard, KeepsSoundSteps) {
  for (Nonfinite nonfinite : {Nonfinite::stop, Nonfinite::skip, Nonfinite::rewind}) {
    const GuardOptions o = options(nonfinite);
    Guard guard(o);
    for (int64_t step = 1; step <= 5; ++step) {
      const Guard::Verdict v = guard.judge(step, sound(), kParameters);
      EXPECT_EQ(v.action, Action::keep);
      EXPECT_EQ(v.problem, "");
    }
  }
}

TEST(Guard, DecidesByTheDeck) {
  struct Case {
    Nonfinite nonfinite;
    step::StepReport report;
    Action action;
    const char* says;
  };
  const std::vector<Case> cases = {
      {Nonfinite::stop, bad_gradient(), Action::give_up,
       "step 7: loss=2.5 and the gradient of head/b is not finite; nothing was updated. No "},
      {Nonfinite::skip, bad_gradient(), Action::skip,
       "step 7: loss=2.5 and the gradient of head/b is not finite; nothing was updated"},
      {Nonfinite::rewind, bad_gradient(), Action::rewind, "the gradient of head/b"},
      {Nonfinite::stop, bad_update(), Action::give_up,
       "but after the update encoder/a is not finite"},
      {Nonfinite::skip, bad_update(), Action::give_up, "too late to skip the step"},
      {Nonfinite::rewind, bad_update(), Action::rewind, "after the update encoder/a"},
      // An overflow of fp16 has its own action, for any deck.
      {Nonfinite::stop, overflow(), Action::overflow,
       "step=7 overflow in fp16: no update; loss_scale=64 -> 32"},
      {Nonfinite::skip, overflow(), Action::overflow, "64 -> 32"},
      {Nonfinite::rewind, overflow(), Action::overflow, "64 -> 32"},
  };
  for (const Case& c : cases) {
    const GuardOptions o = options(c.nonfinite);
    const Guard::Verdict v = Guard(o).judge(7, c.report, kParameters);
    EXPECT_EQ(v.action, c.action) << int(c.nonfinite) << ": " << v.problem;
    EXPECT_NE(v.problem.find(c.says), std::string::npos) << v.problem;
  }
}

TEST(Guard, NamesALossThatIsNotFinite) {
  step::StepReport r = sound();
  r.finite = false;
  r.measures = {NAN};
  const GuardOptions o = options(Nonfinite::skip);
  EXPECT_EQ(Guard(o).judge(3, r, kParameters).problem,
            "step 3: loss=nan is not finite; nothing was updated");
}

// A scale at its minimum cannot shrink, so the step is judged like one without a scale.
TEST(Guard, AScaleAtItsMinimumIsNoOverflow) {
  step::StepReport r = overflow();
  r.gradients.next_loss_scale = r.gradients.loss_scale;
  const GuardOptions o = options(Nonfinite::stop);
  const Guard::Verdict v = Guard(o).judge(3, r, kParameters);
  EXPECT_EQ(v.action, Action::give_up);
  EXPECT_NE(v.problem.find("(loss scale 64, its minimum: precision.loss_scale.min)"),
            std::string::npos)
      << v.problem;
}

TEST(Guard, EndsTheRunAfterMaxSkipsInARow) {
  for (const step::StepReport& bad : {bad_gradient(), overflow()}) {
    const GuardOptions o = options(Nonfinite::skip, 2);
    Guard guard(o);
    auto action = [&](int64_t step, const step::StepReport& r) {
      return guard.judge(step, r, kParameters).action;
    };
    for (int64_t first : {10, 20}) {  // a sound step between them begins a new count
      EXPECT_NE(action(first, bad), Action::give_up);
      EXPECT_NE(action(first + 1, bad), Action::give_up);
      EXPECT_EQ(action(first + 2, sound()), Action::keep);
    }
    EXPECT_NE(action(30, bad), Action::give_up);
    EXPECT_NE(action(31, bad), Action::give_up);
    const Guard::Verdict v = guard.judge(32, bad, kParameters);
    EXPECT_EQ(v.action, Action::give_up);
    EXPECT_NE(v.problem.find(", 3 times in a row (guard.max_skips)"), std::string::npos)
        << v.problem;
  }
}

// After a rewind the run repeats the steps before the bad one. They are sound, and must not end the
// count.
TEST(Guard, StepsDoneAgainDoNotEndTheCountOfRewinds) {
  const GuardOptions o = options(Nonfinite::rewind, 2);
  Guard guard(o);
  for (int64_t attempt = 1; attempt <= 3; ++attempt) {
    for (int64_t step = 5; step < 8; ++step)
      EXPECT_EQ(guard.judge(step, sound(), kParameters).action, Action::keep);
    EXPECT_EQ(guard.judge(8, bad_gradient(), kParameters).action,
              attempt <= 2 ? Action::rewind : Action::give_up);
  }
}

// An earlier step that turns bad after a rewind does not move the place where a count may end.
TEST(Guard, AnEarlierBadStepDoesNotEndTheCountOfRewinds) {
  const GuardOptions o = options(Nonfinite::rewind, 2);
  Guard guard(o), other(o);
  auto action = [&](Guard& of, int64_t step, const step::StepReport& r) {
    return of.judge(step, r, kParameters).action;
  };
  for (Guard* one : {&guard, &other}) {
    EXPECT_EQ(action(*one, 10, bad_gradient()), Action::rewind);
    EXPECT_EQ(action(*one, 7, bad_gradient()), Action::rewind);
    EXPECT_EQ(action(*one, 8, sound()), Action::keep);
  }
  EXPECT_EQ(action(guard, 9, bad_gradient()), Action::give_up) << "three in a row";
  // The bad step itself may be sound the next time. Only the step behind it is new.
  for (int64_t step : {9, 10}) EXPECT_EQ(action(other, step, sound()), Action::keep);
  Guard third = other;
  EXPECT_EQ(action(other, 11, bad_gradient()), Action::give_up);
  EXPECT_EQ(action(third, 11, sound()), Action::keep);
  EXPECT_EQ(action(third, 12, bad_gradient()), Action::rewind);
}

}  // namespace
}  // namespace train
