// SPDX-License-Identifier: Apache-2.0
// [schedule.NAME] kind = "phases": the published schedules of self-supervised recipes (ssl.md 5).
// They are values, not multipliers, as functions of w in [0, 1): the share of the run before the
// update. A schedule is one phase, or phases one after the other. All numbers are double.
//
// To add a kind of phase: a struct with its keys and its value, and a row in phases.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/schedule.hpp"

namespace optim {

struct PhaseShape : config::Table::Variant {
  virtual double at(double w) const = 0;
  // True if it is published with one value per epoch.
  virtual bool per_epoch() const { return false; }
  // Returns the shape with `rate` as its main value, in place of the deck's (ssl.md 5.2).
  virtual std::shared_ptr<const PhaseShape> scaled_to(double rate) const = 0;
};

struct PhaseRow {
  std::string name, doc;
  std::shared_ptr<PhaseShape> (*make_options)();
};
const base::Registry<PhaseRow>& phase_rows();

// [[schedule.NAME.phase]]
struct Phase {
  std::string kind = "constant";
  std::shared_ptr<config::Table::Variant> shape;  // a PhaseShape
  double length = 0;                              // share of the run; 0 in the last: the rest
  bool own_clock = true;  // w runs from 0 to 1 within the phase (false: within the run)
  void bind(config::Table& t);
  std::shared_ptr<const PhaseShape> curve() const;
};

// [schedule.NAME.auto_scale]: the main value becomes value * global_batch / batch, and a linear
// phase before others starts from the rate of another batch.
struct AutoScale {
  double value = 0;
  int64_t batch = 256, warmup_batch = 0;
  bool root = false;  // times the square root of the quotient
  void bind(config::Table& t);
  double rate(int64_t global_batch) const;
};

struct PhasesShape : ScheduleShape {
  enum class Update { published, step, epoch };
  std::vector<Phase> phases;
  Update update = Update::published;
  std::optional<AutoScale> auto_scale;

  void bind(config::Table& t) override;
  void find_problems(const Clock& clock, const std::string& name,
                     std::vector<Problem>& out) const override;
  Curve curve(const Clock& clock, int64_t warmup, const std::string& name) const override;
  // Returns the schedule as a function of w, scaled to a batch.
  std::function<double(double w)> value(int64_t global_batch) const;
  bool per_epoch() const;
};

}  // namespace optim
