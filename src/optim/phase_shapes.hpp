// SPDX-License-Identifier: Apache-2.0
// The kinds of phases (ssl.md 5), as published. w: share of the run, or of the phase.
#pragma once

#include <vector>

#include "optim/phases.hpp"

namespace optim {

// Shares of a run that differ by less are equal, as published.
constexpr double kSameShare = 1e-6;

struct ConstantPhase : PhaseShape {
  double value = 1;
  void bind(config::Table& t) override;
  double at(double w) const override;
  bool per_epoch() const override { return true; }
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};

struct LinearPhase : PhaseShape {
  double start = 0, end = 1;
  void bind(config::Table& t) override;
  double at(double w) const override;
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};

struct CosinePhase : PhaseShape {
  double start = 1, end = 0;
  void bind(config::Table& t) override;
  double at(double w) const override;
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};

struct PolynomialPhase : PhaseShape {
  double value = 1, power = 1;
  void bind(config::Table& t) override;
  double at(double w) const override;
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};

// A sequence of values. Scaled to a batch, value i is rate * gamma^i, where gamma is the quotient
// of the first two values. Roundings are as published.
struct ValuesPhase : PhaseShape {
  std::vector<double> values;
  bool per_epoch() const override { return true; }

 protected:
  void bind_values(config::Table& t);
  std::vector<double> scaled_values(double rate) const;
};
struct StepPhase : ValuesPhase {
  void bind(config::Table& t) override;
  double at(double w) const override;
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};
struct MultistepPhase : ValuesPhase {
  std::vector<int64_t> milestones;  // epochs; empty: equal shares
  int64_t num_epochs = 0;
  void bind(config::Table& t) override;
  double at(double w) const override;
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};

struct GammaPhase : PhaseShape {
  double value = 1, gamma = 0.1;
  int64_t num_decays = 1;
  void bind(config::Table& t) override;
  double at(double w) const override;
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};

struct InverseRootPhase : PhaseShape {
  double start = 1, warmup = 0;
  void bind(config::Table& t) override;
  double at(double w) const override;
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};

// Restarts every `interval`. Half waves jump from end to top; full waves rise again along the
// cosine. The top is start times factor^restarts, or follows a cosine over the whole run.
struct RestartPhase : PhaseShape {
  double start = 1, end = 0, interval = 0.5, factor = 1;
  bool half = true, adaptive = false;
  void bind(config::Table& t) override;
  double at(double w) const override;
  std::shared_ptr<const PhaseShape> scaled_to(double rate) const override;
};

}  // namespace optim
