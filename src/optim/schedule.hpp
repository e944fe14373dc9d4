// SPDX-License-Identifier: Apache-2.0
// Schedules: a multiplier of the update as a function of the number of updates already made (step -
// 1). The formulas are from big_vision's create_learning_rate_schedule, evaluated in float. Warm-up
// and cooldown multiply the shape's value.
//
// To add a shape: a struct with its keys and its curve, and a row in schedule.cpp.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/registry.hpp"
#include "config/table.hpp"

namespace optim {

// The lengths that durations refer to.
struct Clock {
  int64_t total_steps = 0;
  int64_t global_batch = 0;
  int64_t data_size = 0;
};

// A problem with a key of the deck, for config::Deck::error.
struct Problem {
  std::string key, text;
};

class Schedule {
 public:
  Schedule() = default;  // constant 1
  explicit Schedule(std::function<float(int64_t)> f) : f_(std::move(f)) {}
  float at(int64_t updates_made) const { return f_ ? f_(updates_made) : 1.0f; }

 private:
  std::function<float(int64_t)> f_;
};

struct ScheduleShape : config::Table::Variant {
  // The value at `step` of a schedule that starts from `base`. `name` is the table, for messages.
  using Curve = std::function<float(float base, int64_t step)>;
  // Adds the problems of the shape's own keys (ScheduleOptions::problems).
  virtual void find_problems(const Clock&, const std::string&, std::vector<Problem>&) const {}
  virtual Curve curve(const Clock& clock, int64_t warmup, const std::string& name) const = 0;
};

// [schedule.NAME]
struct ScheduleOptions {
  std::string kind = "constant";
  std::shared_ptr<config::Table::Variant> shape;  // a ScheduleShape; none: the defaults of `kind`
  double mult = 1;                                // multiplies shape, warm-up and cooldown
  bool scale_with_batch = false;                  // times global_batch / 256
  config::Duration warmup, cooldown;

  void bind(config::Table& t);
  // Returns lengths that do not fit into the run. Skips checks that need a length of the run or of
  // the data that is not known yet (0).
  std::vector<Problem> problems(const Clock& clock, const std::string& name) const;
  // Throws Error(Exit::config) for the first of the problems.
  Schedule make(const Clock& clock, const std::string& name) const;
};
// The registered kinds.
struct ScheduleRow {
  std::string name, doc;
  std::shared_ptr<ScheduleShape> (*make_options)();
};
const base::Registry<ScheduleRow>& schedule_rows();

// ---- the shapes

struct ConstantShape : ScheduleShape {
  Curve curve(const Clock&, int64_t, const std::string&) const override;
};
// end + (base - end) (1 - p)^power, where p runs from 0 to 1 between warm-up and the end of
// training.
struct PolynomialShape : ScheduleShape {
  double end = 0, power = 1;
  void bind(config::Table& t) override;
  Curve curve(const Clock& clock, int64_t warmup, const std::string& name) const override;
};
struct LinearShape : PolynomialShape {
  void bind(config::Table& t) override;
};
struct CosineShape : ScheduleShape {
  Curve curve(const Clock& clock, int64_t warmup, const std::string& name) const override;
};
// base / sqrt(1 + (step + shift - warmup) / timescale)
struct RsqrtShape : ScheduleShape {
  config::Duration timescale{config::Duration::Unit::steps, 10000}, shift;
  void bind(config::Table& t) override;
  Curve curve(const Clock& clock, int64_t warmup, const std::string& name) const override;
};
// base times the multiplier of the last boundary reached
struct StairShape : ScheduleShape {
  std::vector<double> at_steps, at_examples, at_epochs, at_fraction;  // at most one of them
  std::vector<double> mults;
  void bind(config::Table& t) override;
  Curve curve(const Clock& clock, int64_t warmup, const std::string& name) const override;
};
// Schedules one after the other. Each part has its own clock, which starts at 0 and runs for the
// length of the part. Warm-up, decay and fractions refer to the part.
struct CompositeShape : ScheduleShape {
  struct Part : ScheduleOptions {
    config::Duration from;  // start of the part; the first one starts at 0
    void bind(config::Table& t);
  };
  std::vector<Part> parts;
  void bind(config::Table& t) override;
  void find_problems(const Clock& clock, const std::string& name,
                     std::vector<Problem>& out) const override;
  Curve curve(const Clock& clock, int64_t warmup, const std::string& name) const override;
};

}  // namespace optim
