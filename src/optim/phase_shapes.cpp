// SPDX-License-Identifier: Apache-2.0
#include "optim/phase_shapes.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/elementary.hpp"
#include "base/fused.hpp"

namespace optim {
namespace {

// Returns end where the cosine ends, and start where it begins.
double half_cosine(double start, double end, double w) {
  return base::fused((start - end) / 2, 1 + base::math::cos(std::numbers::pi * w), end);
}

double rounded(double x, int digits) {
  const double scale = base::math::pow(10.0, digits);
  return std::nearbyint(x * scale) / scale;
}

// Returns a copy of the shape that `change` has changed.
template <class Shape, class F>
std::shared_ptr<const PhaseShape> changed(const Shape& shape, const F& change) {
  auto copy = std::make_shared<Shape>(shape);
  change(*copy);
  return copy;
}

double scaled_end(double start, double end, double rate) {
  return start == 0 ? 0 : rate * end / start;
}

}  // namespace

void ConstantPhase::bind(config::Table& t) { t.key("value", value, "value throughout").min(0); }
double ConstantPhase::at(double) const { return value; }
std::shared_ptr<const PhaseShape> ConstantPhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) { p.value = rate; });
}

void LinearPhase::bind(config::Table& t) {
  t.key("start", start, "value at w = 0").min(0);
  t.key("end", end, "value at w = 1").min(0);
}
double LinearPhase::at(double w) const { return base::fused(end, w, start * (1 - w)); }
std::shared_ptr<const PhaseShape> LinearPhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) { p.end = rate; });
}

void CosinePhase::bind(config::Table& t) {
  t.key("start", start, "value at w = 0").min(0);
  t.key("end", end, "value at w = 1, the floor").min(0);
}
double CosinePhase::at(double w) const { return half_cosine(start, end, w); }
std::shared_ptr<const PhaseShape> CosinePhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) {
    p.end = scaled_end(start, end, rate);
    p.start = rate;
  });
}

void PolynomialPhase::bind(config::Table& t) {
  t.key("value", value, "value at w = 0").min(0);
  t.key("power", power, "exponent of 1 - w").above(0);
}
double PolynomialPhase::at(double w) const { return value * base::math::pow(1 - w, power); }
std::shared_ptr<const PhaseShape> PolynomialPhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) { p.value = rate; });
}

void ValuesPhase::bind_values(config::Table& t) {
  t.key("values", values, "values in the order of time").required().min(0);
}

std::vector<double> ValuesPhase::scaled_values(double rate) const {
  const double gamma = values.size() > 1 && values[0] != 0 ? rounded(values[1] / values[0], 6) : 1;
  std::vector<double> out;
  for (size_t i = 0; i < values.size(); ++i)
    out.push_back(rounded(rate * base::math::pow(gamma, double(i)), 8));
  return out;
}

void StepPhase::bind(config::Table& t) { bind_values(t); }
double StepPhase::at(double w) const {
  const auto i = size_t((w + kSameShare) * double(values.size()));
  return values[std::min(i, values.size() - 1)];
}
std::shared_ptr<const PhaseShape> StepPhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) { p.values = scaled_values(rate); });
}

void MultistepPhase::bind(config::Table& t) {
  bind_values(t);
  t.key("milestones", milestones, "epochs from which the next value holds; empty = equal shares")
      .min(0);
  t.key("num_epochs", num_epochs, "epochs of the whole run, in the unit of milestones")
      .required()
      .min(1);
  if (!milestones.empty() && milestones.size() + 1 != values.size())
    t.error("milestones", fmt::format("{} values need {} milestones, not {}", values.size(),
                                      values.empty() ? 0 : values.size() - 1, milestones.size()));
  if (!std::is_sorted(milestones.begin(), milestones.end())) t.error("milestones", "must increase");
}
double MultistepPhase::at(double w) const {
  const auto epoch = int64_t((w + kSameShare) * double(num_epochs));
  const auto count = int64_t(values.size());
  int64_t reached = 0;
  if (milestones.empty())
    reached = epoch / ((num_epochs + count - 1) / count);
  else
    reached = std::upper_bound(milestones.begin(), milestones.end(), epoch) - milestones.begin();
  return values[size_t(std::min(reached, count - 1))];
}
std::shared_ptr<const PhaseShape> MultistepPhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) { p.values = scaled_values(rate); });
}

void GammaPhase::bind(config::Table& t) {
  t.key("value", value, "value at w = 0").min(0);
  t.key("gamma", gamma, "factor of each decay").above(0);
  t.key("num_decays", num_decays, "decays, at equal distances within the run").min(0);
}
double GammaPhase::at(double w) const {
  return value * base::math::pow(gamma, std::floor((w + kSameShare) * double(num_decays + 1)));
}
std::shared_ptr<const PhaseShape> GammaPhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) { p.value = rate; });
}

void InverseRootPhase::bind(config::Table& t) {
  t.key("start", start, "value at w = warmup").min(0);
  t.key("warmup", warmup,
        "the w at which the value is start, in start * sqrt(warmup / w); 0 = start / sqrt(w)")
      .min(0)
      .max(1);
}
double InverseRootPhase::at(double w) const {
  const double first = start * (warmup > 0 ? std::sqrt(warmup) : 1);
  return w > 0 ? first / std::sqrt(w) : first;
}
std::shared_ptr<const PhaseShape> InverseRootPhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) { p.start = rate; });
}

void RestartPhase::bind(config::Table& t) {
  t.key("start", start, "value at w = 0, the first top").min(0);
  t.key("end", end, "value at the foot of each wave").min(0);
  t.key("interval", interval, "share of the run between top and foot").above(0).max(1);
  t.choice("wave", half, {{"half", true}, {"full", false}},
           "half: jumps from foot to top; full: rises along the cosine");
  t.key("factor", factor, "times the top after each restart").above(0);
  t.key("adaptive", adaptive,
        "tops lie on a cosine from start to end over the run, without factor");
}
double RestartPhase::at(double w) const {
  // Restart i >= 1 is at interval + (i - 1) distance, if that is within the run.
  const double distance = half ? interval : 2 * interval;
  const auto restarts = int64_t(std::ceil((1 - interval) / distance));
  int64_t last = 0;
  double from = 0;
  for (int64_t i = 1; i <= restarts; ++i)
    if (const double place = base::fused(double(i - 1), distance, interval); place <= w) {
      last = i;
      from = place;
    }
  const double top = adaptive ? half_cosine(start, end, from + (half ? 0 : interval))
                              : start * base::math::pow(factor, double(last));
  return half_cosine(top, end, half ? std::fmod(w, interval) / interval : w / interval);
}
std::shared_ptr<const PhaseShape> RestartPhase::scaled_to(double rate) const {
  return changed(*this, [&](auto& p) {
    p.end = scaled_end(start, end, rate);
    p.start = rate;
  });
}

}  // namespace optim
