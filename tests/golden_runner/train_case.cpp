// SPDX-License-Identifier: Apache-2.0
// Training cases: the logged values of each step, and parameters and optimizer state after the
// last.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <set>

#include "run_case.hpp"

namespace golden {
namespace {

// The gradient of an encoder's key bias is zero up to rounding. So its state is not compared, and
// the strict comparison of norms leaves it out (tests/golden/README.md, "Key biases").
bool key_bias(const std::string& path) { return path.ends_with("key/bias"); }

float float_of_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

double norm_without_key_bias(const optim::Norms& norms, const shard::Layout& layout) {
  double square = 0;
  for (size_t p = 0; p < norms.per_parameter.size(); ++p)
    if (!key_bias(layout.parameters()[p].path))
      square += norms.per_parameter[p] * norms.per_parameter[p];
  return std::sqrt(square);
}

}  // namespace

void Runner::run_training_case(step::Engine& engine, Report& report) const {
  std::vector<step::StepReport> steps;
  for (int64_t s = 1; s <= case_.steps; ++s) {
    steps.push_back(engine.step(s, source(s), preparation(engine, s)));
    report.require("training_loss", fmt::format("finite at step {}", s), steps.back().finite);
    if (!steps.back().finite) return;
  }
  compare_steps(steps, engine.layout(), report);
  compare_norms(steps, engine.layout(), report);
  compare_state(engine, report);
}

void Runner::compare_steps(const std::vector<step::StepReport>& steps, const shard::Layout& layout,
                           Report& report) const {
  auto series = [&](const std::string& name, auto value) {
    std::string set = "steps/" + name;
    std::vector<float> want = file_.floats(set, {case_.steps});
    for (size_t s = 0; s < steps.size(); ++s)
      report.compare(name, fmt::format("step {}", s + 1), value(steps[s]), double(want[s]),
                     file_.tolerance(set));
  };
  using Step = step::StepReport;
  series("training_loss", [](const Step& s) { return s.loss(); });
  series("l2_grads", [](const Step& s) { return s.gradients.gradients.global; });
  series("l2_params", [](const Step& s) { return s.update.parameters.global; });
  series("l2_updates", [](const Step& s) { return s.update.updates.global; });
  series("l2_grads_no_key_bias",
         [&](const Step& s) { return norm_without_key_bias(s.gradients.gradients, layout); });
  series("l2_params_no_key_bias",
         [&](const Step& s) { return norm_without_key_bias(s.update.parameters, layout); });
  series("l2_updates_no_key_bias",
         [&](const Step& s) { return norm_without_key_bias(s.update.updates, layout); });
  std::set<std::string> schedules;
  for (size_t i = 0; i < steps.front().update.schedules.size(); ++i) {
    std::string name = i ? fmt::format("global_schedule{}", i) : "global_schedule";
    series(name, [i](const Step& s) { return double(s.update.schedules[i]); });
    schedules.insert(name);
  }
  for (const std::string& name : file_.below("steps"))
    if (name.starts_with("global_schedule"))
      report.require("schedules", name, schedules.count(name) > 0);
}

void Runner::compare_norms(const std::vector<step::StepReport>& steps, const shard::Layout& layout,
                           Report& report) const {
  std::vector<std::string> names = file_.strings("steps/tensor_norms/names");
  int64_t n = int64_t(names.size());
  std::set<std::string> seen(names.begin(), names.end());
  for (const shard::Parameter& p : layout.parameters())
    report.require("norm per tensor: names", p.path, key_bias(p.path) || seen.count(p.path) > 0);
  for (const char* what : {"grads", "updates"}) {
    std::string set = fmt::format("steps/tensor_norms/{}", what);
    std::vector<float> want = file_.floats(set, {case_.steps, n});
    for (size_t s = 0; s < steps.size(); ++s)
      for (int64_t t = 0; t < n; ++t) {
        int p = layout.find(names[size_t(t)]);
        if (p < 0) file_.fail("steps/tensor_norms/names", "no parameter " + names[size_t(t)]);
        const optim::Norms& norms =
            what[0] == 'g' ? steps[s].gradients.gradients : steps[s].update.updates;
        report.compare(fmt::format("norm per tensor: {}", what),
                       fmt::format("{}, step {}", names[size_t(t)], s + 1),
                       norms.per_parameter[size_t(p)], double(want[s * size_t(n) + size_t(t)]),
                       file_.tolerance(set));
      }
  }
}

// Compares the parts of a tensor that this rank holds.
void Runner::compare_slice(const StateSet& state, double wide, device::Queue& queue,
                           Report& report) const {
  const shard::TensorSlice& slice = state.slice;
  std::vector<float> want = file_.floats(state.set, slice.shape);
  double scale = 0;
  for (float x : want) scale = std::max(scale, std::abs(double(x)));
  for (const shard::TensorSlice::Part& p : slice.parts) {
    std::vector<float> got(size_t(p.end - p.begin));
    device::read_on_host(slice.view(p), queue, [&](device::View v) {
      for (size_t i = 0; i < got.size(); ++i)
        got[i] = slice.type == device::DType::bf16 ? float_of_bf16(v.bf16()[i]) : v.f32()[i];
    });
    report.compare(state.quantity, state.set.substr(state.set.find('/') + 1), got.data(),
                   want.data() + p.begin, p.end - p.begin, file_.tolerance(state.set),
                   wide * scale);
  }
}

// Returns the largest tolerance of each quantity's sets, as a part of the set's largest value.
std::map<std::string, double> Runner::wide_tolerances(const std::vector<StateSet>& all) const {
  std::map<std::string, double> wide;
  for (const StateSet& s : all) {
    double scale = 0;
    for (float x : file_.floats(s.set, s.slice.shape)) scale = std::max(scale, std::abs(double(x)));
    if (scale > 0) wide[s.quantity] = std::max(wide[s.quantity], file_.tolerance(s.set) / scale);
  }
  return wide;
}

void Runner::compare_state(step::Engine& engine, Report& report) const {
  std::set<std::string> recorded;
  for (const std::string& name : file_.below("opt_final")) recorded.insert(name);
  // The first state of a tensor has the optimizer's number in the chain of transformations. Names
  // of digits alone are counts.
  std::string chain = "1";
  for (const std::string& name : recorded)
    if (name.find_first_not_of("0123456789/") != std::string::npos) {
      chain = name.substr(0, name.find('/'));
      break;
    }
  std::vector<StateSet> compared;
  bool rounded = false;  // true if some state is in bfloat16
  auto keep = [&](const shard::TensorSlice& slice, const std::string& set,
                  const std::string& quantity) {
    if (file_.rounding_noise_only(set) || key_bias(set)) return report.skip(set);
    compared.push_back({slice, set, quantity});
    rounded |= slice.type == device::DType::bf16;
  };
  for (const shard::TensorSlice& slice : engine.state()) {
    int64_t held = 0, size = 1;
    for (int64_t d : slice.shape) size *= d;
    for (const shard::TensorSlice::Part& p : slice.parts)
      held += slice.writes ? p.end - p.begin : 0;
    report.require("each element written once", slice.name, mesh_.world->sum(held) == size);
    if (slice.name.starts_with("/params/")) {
      keep(slice, "params_final/" + slice.name.substr(8), "parameters");
      continue;
    }
    std::string ours = slice.name.substr(std::string("/optimizer/").size());
    std::string name = chain + "/" + published_state_name(ours),
                kind = ours.substr(0, ours.find('/', ours.find('/') + 1));
    report.require("optimizer state: sets", name, recorded.erase(name) > 0, "not recorded");
    if (file_.has("opt_final/" + name)) keep(slice, "opt_final/" + name, kind);
  }
  std::map<std::string, double> wide;
  if (rounded) wide = wide_tolerances(compared);
  for (const StateSet& s : compared)
    compare_slice(s, s.slice.type == device::DType::bf16 ? 0 : wide[s.quantity], engine.queue(),
                  report);
  for (const std::string& name : recorded) {
    std::string set = "opt_final/" + name, place = name.substr(name.find('/') + 1);
    if (name.find_first_not_of("0123456789/") == std::string::npos) {
      report.compare("optimizer state: counts", name, double(file_.ints(set, {})[0]),
                     double(case_.steps), 0);
    } else if (unused_state(case_.optimizer.kind, place) && file_.shape(set) == Shape{1}) {
      report.compare("optimizer state: unused", name, double(file_.floats(set, {1})[0]), 0.0, 0);
    } else {
      report.require("optimizer state: sets", name, false, "recorded, but not here");
    }
  }
}

}  // namespace golden
