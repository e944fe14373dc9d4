// SPDX-License-Identifier: Apache-2.0
#include "optim/phases.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "optim/phase_shapes.hpp"

namespace optim {
namespace {

template <class T>
std::shared_ptr<PhaseShape> make_phase() {
  return std::make_shared<T>();
}

// A phase with its place in the run.
struct Placed {
  std::shared_ptr<const PhaseShape> shape;
  double length = 0;
  bool own_clock = true;
};

// Follows the published code: the last phase has the rest of the run.
std::function<double(double)> in_turn(std::vector<Placed> phases) {
  double others = 0;
  for (size_t i = 0; i + 1 < phases.size(); ++i) others += phases[i].length;
  if (phases.back().length == 0 || others + phases.back().length != 1)
    phases.back().length = 1 - others;
  return [phases](double w) {
    size_t i = 0;
    double end = phases[0].length;
    while (w + kSameShare > end && i + 1 < phases.size()) end += phases[++i].length;
    const Placed& phase = phases[i];
    return phase.shape->at(phase.own_clock ? (w - (end - phase.length)) / phase.length : w);
  };
}

// Scales the values to the batch. The first linear phase among others is the warm-up. It starts
// from the rate of warmup_batch, and is left out if warmup_batch is the whole batch.
void scale(const AutoScale& rule, int64_t global_batch, std::vector<Placed>& phases) {
  for (Placed& phase : phases) phase.shape = phase.shape->scaled_to(rule.rate(global_batch));
  if (phases.size() == 1 || rule.warmup_batch == 0) return;
  for (auto phase = phases.begin(); phase != phases.end(); ++phase) {
    const auto* linear = dynamic_cast<const LinearPhase*>(phase->shape.get());
    if (!linear) continue;
    auto warmup = std::make_shared<LinearPhase>(*linear);
    warmup->start = rule.value * double(rule.warmup_batch) / double(rule.batch);
    phase->shape = warmup;
    if (rule.warmup_batch < global_batch || warmup->start > warmup->end) return;
    const double rest = 1 - phase->length;
    phases.erase(phase);
    for (Placed& other : phases) other.length /= rest;
    return;
  }
}

}  // namespace

const base::Registry<PhaseRow>& phase_rows() {
  static const base::Registry<PhaseRow> rows(
      "phase",
      {
          {"constant", "`value` throughout", make_phase<ConstantPhase>},
          {"linear", "a straight line from `start` to `end`", make_phase<LinearPhase>},
          {"cosine", "half a cosine from `start` to `end`", make_phase<CosinePhase>},
          {"polynomial", "value (1 - w)^power", make_phase<PolynomialPhase>},
          {"step", "`values`, each for an equal share of the run", make_phase<StepPhase>},
          {"step_with_fixed_gamma", "times `gamma` after each of num_decays + 1 shares",
           make_phase<GammaPhase>},
          {"multistep", "another one of `values` from each milestone on",
           make_phase<MultistepPhase>},
          {"inverse_sqrt", "start sqrt(warmup / w); there is no warm-up: above start before",
           make_phase<InverseRootPhase>},
          {"cosine_warm_restart", "cosines from `start` to `end`, one after the other",
           make_phase<RestartPhase>},
      });
  return rows;
}

void Phase::bind(config::Table& t) {
  t.kind("kind", kind, shape, phase_rows(), "curve of the value");
  t.key("length", length, "share of the run; the last phase may leave it out and has the rest")
      .min(0)
      .max(1);
  t.choice("clock", own_clock, {{"phase", true}, {"run", false}},
           "phase: w runs from 0 to 1 within the phase (\"rescaled\" in the published code); run: "
           "w runs so within the run (\"fixed\"), so a later phase begins inside its curve");
}

void AutoScale::bind(config::Table& t) {
  t.key("value", value, "rate of `batch` examples; the schedule's own values keep their ratios")
      .required()
      .above(0);
  t.key("batch", batch, "examples that `value` is for").min(1).unit("examples");
  t.choice("rule", root, {{"linear", false}, {"sqrt", true}},
           "times global_batch / batch, or its root");
  t.key("warmup_batch", warmup_batch,
        "with several phases the first linear one, the warm-up, starts at value * warmup_batch / "
        "batch (published: the batch of one node). It is left out if warmup_batch is at least "
        "global_batch and it would not fall. 0 = its own start")
      .min(0)
      .unit("examples");
}

void PhasesShape::bind(config::Table& t) {
  t.list("phase", phases, "phases in order; learning_rate multiplies their values");
  t.choice("update", update,
           {{"published", Update::published}, {"step", Update::step}, {"epoch", Update::epoch}},
           "when the value changes; published: each epoch if the only phase is constant, step or "
           "multistep, else each step");
  t.optional_table("auto_scale", auto_scale,
                   "with this table the values follow the batch (examples of all ranks)");
}

bool PhasesShape::per_epoch() const {
  if (update != Update::published) return update == Update::epoch;
  if (phases.size() != 1) return false;
  return phases[0].curve()->per_epoch();
}

void PhasesShape::find_problems(const Clock&, const std::string& name,
                                std::vector<Problem>& out) const {
  if (phases.empty()) {
    out.push_back({name + ".phase", fmt::format("a schedule of phases needs [[{}.phase]]", name)});
    return;
  }
  double sum = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    sum += phases[i].length;
    if (phases[i].length == 0 && i + 1 < phases.size())
      out.push_back({fmt::format("{}.phase.{}.length", name, i),
                     "missing; only the last phase may leave it out"});
  }
  const bool open = phases.back().length == 0;
  if (open ? sum >= 1 && phases.size() > 1 : std::abs(sum - 1) > 1e-3)
    out.push_back(
        {fmt::format("{}.phase.{}.length", name, phases.size() - 1),
         open
             ? fmt::format(
                   "the phases before the last add up to {:g}, so the last one has no length", sum)
             : fmt::format(
                   "the lengths add up to {:g}, but must add up to 1; the last one may be left out",
                   sum)});
}

std::shared_ptr<const PhaseShape> Phase::curve() const {
  auto made = shape ? std::dynamic_pointer_cast<const PhaseShape>(shape)
                    : phase_rows().at(kind).make_options();
  CHECK(made, "phase options of another family");
  return made;
}

double AutoScale::rate(int64_t global_batch) const {
  const double quotient = double(global_batch) / double(batch);
  return value * (root ? std::sqrt(quotient) : quotient);
}

std::function<double(double)> PhasesShape::value(int64_t global_batch) const {
  std::vector<Placed> placed;
  for (const Phase& phase : phases)
    placed.push_back({phase.curve(), phase.length, phase.own_clock});
  if (auto_scale) scale(*auto_scale, global_batch, placed);
  return in_turn(std::move(placed));
}

ScheduleShape::Curve PhasesShape::curve(const Clock& clock, int64_t,
                                        const std::string& name) const {
  const std::function<double(double)> all = value(clock.global_batch);
  const bool epochs = per_epoch();
  if (epochs && clock.data_size <= 0)
    base::fail(base::Exit::config, "{}.update: the size of the data is not known; use \"step\"",
               name);
  return [=](float base, int64_t step) {
    const double total = double(clock.total_steps) * double(clock.global_batch);
    int64_t seen = step * clock.global_batch;
    if (epochs) seen = seen / clock.data_size * clock.data_size;
    return float(double(base) * all(std::min(double(seen) / total, 1.0)));
  };
}

}  // namespace optim
