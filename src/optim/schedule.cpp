// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/elementary.hpp"
#include "base/error.hpp"
#include "base/fused.hpp"
#include "optim/phases.hpp"

namespace optim {
namespace {

template <class T>
std::shared_ptr<ScheduleShape> make_shape() {
  return std::make_shared<T>();
}

constexpr int64_t kDefaultTimescale = 10000;

int64_t steps_of(const config::Duration& d, const Clock& clock, int64_t otherwise) {
  return d.steps(clock.global_batch, clock.data_size, clock.total_steps, otherwise);
}

// Returns the steps of a warm-up or cooldown. 0 in any unit means none.
int64_t ramp_of(const config::Duration& d, const Clock& clock) {
  return d.value == 0 ? 0 : steps_of(d, clock, 0);
}

// Returns ramp_of, or nothing if it is not known yet. An impossible length is a problem of `key`.
std::optional<int64_t> known_ramp(const config::Duration& d, const Clock& clock,
                                  const std::string& key, std::vector<Problem>& out) {
  using Unit = config::Duration::Unit;
  if (d.unit == Unit::epochs && clock.data_size <= 0) return {};
  if (d.unit == Unit::fraction && clock.total_steps <= 0) return {};
  try {
    return ramp_of(d, clock);
  } catch (const base::Error& e) {
    out.push_back({key, e.what()});
    return {};
  }
}

// Powers and cosines of floats are computed in double and rounded once. They have the same bits on
// every machine, and differ from any float library by one rounding at most.
float power_of(float x, float e) { return float(base::math::pow(double(x), double(e))); }
float cosine_of(float x) { return float(base::math::cos(double(x))); }

// Returns the progress between warm-up and the end, clipped to [0, 1].
float progress(int64_t step, int64_t warmup, int64_t total) {
  return std::clamp(float(step - warmup) / float(total - warmup), 0.0f, 1.0f);
}

}  // namespace

const base::Registry<ScheduleRow>& schedule_rows() {
  static const base::Registry<ScheduleRow> rows(
      "schedule",
      {
          {"constant", "1 throughout", make_shape<ConstantShape>},
          {"linear", "a straight line from 1 to `end`", make_shape<LinearShape>},
          {"polynomial", "from 1 to `end`, by a power of the share of the run that is left",
           make_shape<PolynomialShape>},
          {"cosine", "half a cosine from 1 to 0", make_shape<CosineShape>},
          {"rsqrt", "falls as 1 / sqrt(1 + steps / timescale), whatever the length of the run",
           make_shape<RsqrtShape>},
          {"stair", "steps: another multiplier from each boundary on", make_shape<StairShape>},
          {"phases", "published values of the share of the run, [[schedule.NAME.phase]]",
           make_shape<PhasesShape>},
          {"composite", "other schedules one after the other, [[schedule.NAME.part]]",
           make_shape<CompositeShape>},
      });
  return rows;
}

void ScheduleOptions::bind(config::Table& t) {
  t.kind("kind", kind, shape, schedule_rows(), "shape of the multiplier over the run");
  t.key("mult", mult, "value that shape, warm-up and cooldown multiply").min(0);
  t.key("scale_with_batch", scale_with_batch, "times global_batch / 256");
  t.duration("warmup", warmup, "rise from 0, which is the first update's value, to the full value");
  t.duration("cooldown", cooldown, "linear fall to 0 at the end of training");
}

std::vector<Problem> ScheduleOptions::problems(const Clock& clock, const std::string& name) const {
  std::vector<Problem> out;
  std::optional<int64_t> rise = known_ramp(warmup, clock, name + ".warmup", out);
  known_ramp(cooldown, clock, name + ".cooldown", out);
  if (rise && *rise >= clock.total_steps && clock.total_steps > 1)
    out.push_back({name + ".warmup", fmt::format("a warm-up of {} steps does not fit into {} steps",
                                                 *rise, clock.total_steps)});
  auto made = shape ? std::dynamic_pointer_cast<ScheduleShape>(shape)
                    : schedule_rows().at(kind).make_options();
  CHECK(made, "schedule options of another family");
  made->find_problems(clock, name, out);
  return out;
}

Schedule ScheduleOptions::make(const Clock& clock, const std::string& name) const {
  if (std::vector<Problem> found = problems(clock, name); !found.empty())
    base::fail(base::Exit::config, "{}: {}", found[0].key, found[0].text);
  const int64_t total = clock.total_steps, warmup_steps = ramp_of(warmup, clock),
                cooldown_steps = ramp_of(cooldown, clock);
  float base_value = float(mult);
  if (scale_with_batch) base_value = float(mult * (double(clock.global_batch) / 256.0));
  auto made = shape ? std::dynamic_pointer_cast<ScheduleShape>(shape)
                    : schedule_rows().at(kind).make_options();
  ScheduleShape::Curve curve = made->curve(clock, warmup_steps, name);
  return Schedule([=](int64_t step) {
    float value = curve(base_value, step);
    if (warmup_steps > 0) value *= std::min(1.0f, float(step) / float(warmup_steps));
    if (cooldown_steps > 0) value *= std::min(1.0f, float(total - step) / float(cooldown_steps));
    return value;
  });
}

ScheduleShape::Curve ConstantShape::curve(const Clock&, int64_t, const std::string&) const {
  return [](float base, int64_t) { return base; };
}

void PolynomialShape::bind(config::Table& t) {
  t.key("end", end, "value at the end of training").min(0);
  t.key("power", power, "exponent of the remaining share").above(0);
}

void LinearShape::bind(config::Table& t) {
  t.key("end", end, "value at the end of training").min(0);
}

ScheduleShape::Curve PolynomialShape::curve(const Clock& clock, int64_t warmup,
                                            const std::string&) const {
  const float zero = float(end), exponent = float(power);
  const int64_t total = clock.total_steps;
  return [=](float base, int64_t step) {
    const float left = 1.0f - progress(step, warmup, total);
    return base::fused(base - zero, exponent == 1 ? left : power_of(left, exponent), zero);
  };
}

ScheduleShape::Curve CosineShape::curve(const Clock& clock, int64_t warmup,
                                        const std::string&) const {
  const int64_t total = clock.total_steps;
  return [=](float base, int64_t step) {
    const float angle = 3.14159265358979323846f * progress(step, warmup, total);
    return base * 0.5f * (1.0f + cosine_of(angle));
  };
}

void RsqrtShape::bind(config::Table& t) {
  t.duration("timescale", timescale, "time until the multiplier has fallen to 1 / sqrt(2)")
      .above(0);
  t.duration("shift", shift, "added to the progress of training");
}

ScheduleShape::Curve RsqrtShape::curve(const Clock& clock, int64_t warmup,
                                       const std::string& name) const {
  const int64_t scale = steps_of(timescale, clock, kDefaultTimescale),
                ahead = ramp_of(shift, clock);
  if (scale <= 0) base::fail(base::Exit::config, "{}: timescale must be above 0", name);
  return [=](float base, int64_t step) {
    const int64_t past = std::max(step, warmup) + ahead - warmup;
    return base / std::sqrt(1.0f + float(past) / float(scale));
  };
}

namespace {
std::string not_whole(const std::vector<double>& counts) {
  for (double x : counts)
    if (x != std::trunc(x)) return fmt::format("{:g} is not a whole number", x);
  return "";
}
}  // namespace

void StairShape::bind(config::Table& t) {
  t.key("at_steps", at_steps, "boundaries: updates made").min(0).check([this] {
    return not_whole(at_steps);
  });
  t.key("at_examples", at_examples, "or: examples seen").min(0).check([this] {
    return not_whole(at_examples);
  });
  t.key("at_epochs", at_epochs, "or: epochs").min(0);
  t.key("at_fraction", at_fraction, "or: fraction of the run").min(0).max(1);
  t.key("mults", mults, "what the schedule is multiplied by from each boundary on").min(0);
  const int given = int(!at_steps.empty()) + int(!at_examples.empty()) + int(!at_epochs.empty()) +
                    int(!at_fraction.empty());
  const size_t boundaries =
      at_steps.size() + at_examples.size() + at_epochs.size() + at_fraction.size();
  if (given > 1) t.error("kind", "give one of at_steps, at_examples, at_epochs, at_fraction");
  if (given <= 1 && boundaries != mults.size())
    t.error("mults", fmt::format("{} multipliers for {} boundaries", mults.size(), boundaries));
  for (const auto* list : {&at_steps, &at_examples, &at_epochs, &at_fraction})
    if (!std::is_sorted(list->begin(), list->end())) t.error("mults", "boundaries must increase");
}

ScheduleShape::Curve StairShape::curve(const Clock& clock, int64_t, const std::string&) const {
  using Unit = config::Duration::Unit;
  std::vector<int64_t> boundaries;
  auto add = [&](const std::vector<double>& list, Unit unit) {
    for (double value : list) boundaries.push_back(steps_of({unit, value}, clock, 0));
  };
  add(at_steps, Unit::steps);
  add(at_examples, Unit::examples);
  add(at_epochs, Unit::epochs);
  add(at_fraction, Unit::fraction);
  CHECK(boundaries.size() == mults.size(), "{} multipliers for {} boundaries", mults.size(),
        boundaries.size());
  return [boundaries, factors = mults](float base, int64_t step) {
    const auto reached =
        std::upper_bound(boundaries.begin(), boundaries.end(), step) - boundaries.begin();
    return reached == 0 ? base : base * float(factors[size_t(reached - 1)]);
  };
}

void CompositeShape::Part::bind(config::Table& t) {
  t.duration("from", from, "where this part starts; the first part always at 0");
  ScheduleOptions::bind(t);
}

void CompositeShape::bind(config::Table& t) {
  t.list("part", parts, "schedules one after the other, each with its own clock");
}

void CompositeShape::find_problems(const Clock& clock, const std::string& name,
                                   std::vector<Problem>& out) const {
  if (parts.empty())
    out.push_back({name + ".part", fmt::format("a composite schedule needs [[{}.part]]", name)});
  auto key = [&](size_t i) { return fmt::format("{}.part.{}", name, i); };
  std::vector<std::optional<int64_t>> starts;
  for (size_t i = 0; i < parts.size(); ++i)
    starts.push_back(i == 0 ? 0 : known_ramp(parts[i].from, clock, key(i) + ".from", out));
  starts.push_back(clock.total_steps > 0 ? std::optional(clock.total_steps) : std::nullopt);
  for (size_t i = 0; i < parts.size(); ++i) {
    int64_t steps = starts[i] && starts[i + 1] ? *starts[i + 1] - *starts[i] : 0;
    if (starts[i] && starts[i + 1] && steps <= 0) {
      out.push_back({key(std::min(i + 1, parts.size() - 1)) + ".from",
                     fmt::format("part {} starts at step {} and ends at {}; parts must be in order "
                                 "and within the run",
                                 i, *starts[i], *starts[i + 1])});
      continue;
    }
    for (Problem& p : parts[i].problems({steps, clock.global_batch, clock.data_size}, key(i)))
      out.push_back(std::move(p));
  }
}

ScheduleShape::Curve CompositeShape::curve(const Clock& clock, int64_t,
                                           const std::string& name) const {
  std::vector<int64_t> starts;
  for (const Part& part : parts) starts.push_back(starts.empty() ? 0 : ramp_of(part.from, clock));
  std::vector<Schedule> schedules;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t end = i + 1 < parts.size() ? starts[i + 1] : clock.total_steps;
    schedules.push_back(parts[i].make({end - starts[i], clock.global_batch, clock.data_size},
                                      fmt::format("{}.part.{}", name, i)));
  }
  return [starts, schedules](float base, int64_t step) {
    const auto part = std::max<int64_t>(
        std::upper_bound(starts.begin(), starts.end(), step) - starts.begin() - 1, 0);
    return base * schedules[size_t(part)].at(step - starts[size_t(part)]);
  };
}

}  // namespace optim
