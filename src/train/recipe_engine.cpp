// SPDX-License-Identifier: Apache-2.0
// The options of an engine that follow from the deck.
#include <algorithm>

#include "base/narrow.hpp"
#include "models/sample_count.hpp"
#include "train/input.hpp"
#include "train/recipe.hpp"

namespace train {
namespace {

step::SidePass pass_of(const eval::EvalOptions& e) {
  return {[e](const models::Model& made) { return eval::make_pass(e, made); }, e.operands(),
          e.weights != eval::Weights::raw};
}

}  // namespace

std::map<std::string, eval::EvalOptions> Recipe::chosen_evaluations() const {
  std::map<std::string, eval::EvalOptions> all = evaluations();
  const std::vector<std::string>& names = evaluate.evaluators;
  if (!names.empty())
    std::erase_if(all, [&](const auto& one) {
      return std::find(names.begin(), names.end(), one.first) == names.end();
    });
  return all;
}

std::shared_ptr<models::Model> Recipe::make_model(const BytePixels* bytes) const {
  std::shared_ptr<models::Model> made = models::make_model(model, memory);
  if (!bytes) return made;
  const data::ByteScale& s = bytes->scale;
  kernels::PixelRange range{s.low, s.width, s.to_low, s.to_width};
  std::copy(s.mean.begin(), s.mean.end(), range.mean);
  std::copy(s.deviation.begin(), s.deviation.end(), range.deviation);
  made->take_bytes(range);
  return made;
}

std::shared_ptr<const models::Model> Recipe::made_model() const {
  const int64_t* samples = models::samples_of(model);
  const MadeFrom now{model.options, memory.recompute, samples ? *samples : 0};
  if (!made_ || made_from_ != now) {
    made_ = make_model();
    made_from_ = now;
  }
  return made_;
}

step::EngineOptions Recipe::any_engine(int threads, device::Kind kind) const {
  step::EngineOptions o;
  o.paper_of = kind;
  const auto bytes = kind == device::Kind::cuda ? byte_pixels() : std::nullopt;
  o.model = bytes ? make_model(&*bytes) : made_model();
  o.init = model.init;
  o.sharding = sharding;
  o.bucket_bytes = int64_t(mesh.bucket_mb * 0x1p20);
  o.determinism = determinism;
  o.seed = run.seed;
  o.threads = threads;
  o.operands = precision.type();
  o.tf32 = precision.compute == host::Compute::tf32;
  return o;
}

ForwardWork Recipe::evaluation_work() const {
  const std::map<std::string, eval::EvalOptions> chosen = chosen_evaluations();
  ForwardWork work{
      .name = "evaluation", .data_sets = data_sets_of(chosen), .batch = evaluate.batch};
  for (const auto& [name, e] : chosen) work.passes.push_back(pass_of(e));
  return work;
}

step::EngineOptions Recipe::forward_engine(const ForwardWork& work, int ranks, int threads,
                                           device::Kind kind) const {
  step::EngineOptions o = any_engine(threads, kind);
  o.trains = false;
  o.passes = work.passes;
  const int64_t part = base::ceil_div(train.global_batch, int64_t(ranks));
  o.micro_batch = work.batch ? work.batch : std::min(train.most_per_pass(), part);
  return o;
}

step::EngineOptions Recipe::engine(const DataLength& length, int threads, device::Kind kind) const {
  step::EngineOptions o = any_engine(threads, kind);
  o.optimizer = optimizer;
  o.groups = log.groups;
  for (const auto& [name, e] : evaluations()) o.passes.push_back(pass_of(e));
  o.global_batch = train.global_batch;
  o.micro_batch = train.most_per_pass();
  o.reduces_after = train.reduces_after;
  if (precision.compute == host::Compute::fp16) o.loss_scale = precision.loss_scale;
  o.forbid_waits = profile.forbid_waits;
  if (run.cuda_graph && kind == device::Kind::cuda) o.graphs = run.cuda_graph_limit;
  optim::Clock clock{total_steps(length), train.global_batch, length.epoch};
  o.total_steps = clock.total_steps;
  if (ema) o.ema = optim::EmaRule(*ema, clock);
  o.noise = noise;
  o.resolve = [optimizer = optimizer, schedule = schedule, clock](
                  const std::vector<shard::Parameter>& parameters,
                  std::vector<optim::ParameterPolicy>& policies,
                  std::vector<optim::Schedule>& schedules) {
    optim::Policies resolved = optim::resolve_policies(optimizer, schedule, parameters, clock);
    if (!resolved.problems.empty())
      base::fail(base::Exit::config, "{}: {}", resolved.problems[0].key, resolved.problems[0].text);
    policies = resolved.parameters;
    schedules = optim::make_schedules(resolved.schedules, schedule, clock);
  };
  return o;
}

}  // namespace train
