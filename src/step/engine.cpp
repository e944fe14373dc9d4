// SPDX-License-Identifier: Apache-2.0
#include "step/engine.hpp"

#include <utility>

#include "base/clock.hpp"
#include "device/range.hpp"
#include "host/mfu.hpp"

namespace step {
using device::DType;
using device::Kind;

Engine::Engine(const EngineOptions& options, comm::Mesh& mesh, Kind kind)
    : options_(options),
      mesh_(mesh),
      queue_(kind, options.threads, options.determinism.mesh, options.paper_of),
      geometry_(derive_geometry(options.global_batch, options.micro_batch, mesh.shape,
                                options.determinism)),
      model_(models::make_model(options.model, options.memory)) {
  queue_.count_scratch(ledger_);
  queue_.set_tf32(options.tf32);
  if (options.bytes) model_->take_bytes(*options.bytes);
  train_pass_ = model_->make_train_pass();
  for (const MakePass& make : options.passes) {
    std::unique_ptr<models::ForwardPass> made = make(*model_);
    if (made && !find_pass(made->name())) forward_passes_.push_back(std::move(made));
  }
  std::vector<shard::Parameter> parameters = model_->parameters();
  std::vector<optim::ParameterPolicy> policies;
  std::vector<optim::Schedule> schedules;
  options_.resolve(parameters, policies, schedules);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (policies[i].frozen && parameters[i].trained())
      parameters[i].kind = shard::ParameterKind::frozen;
    if (parameters[i].trained())
      parameters[i].element_state_bytes =
          options.optimizer.method_options().element_state_bytes(parameters[i].shape);
  }
  int64_t cuts = options.determinism.mesh ? geometry_.total_slices : mesh.shape.fsdp;
  layout_ = std::make_unique<shard::Layout>(std::move(parameters), model_->blocks(),
                                            options.sharding, mesh.shape.fsdp, cuts);

  shard::Fabric fabric{*layout_,        mesh_, queue_, ledger_, options.determinism.mesh,
                       options.operands};
  weights_ = std::make_unique<shard::WeightStore>(fabric, int(options.sharding.prefetch));
  gradients_ = std::make_unique<shard::GradientStore>(fabric, geometry_.accumulation);
  states_ = std::make_unique<shard::StateStore>(fabric);
  group_ = std::make_unique<nn::BatchGroup>(mesh_, geometry_.slices);
  optimizer_ =
      std::make_unique<optim::Optimizer>(fabric, options.optimizer, std::move(policies),
                                         std::move(schedules), options.groups, options.loss_scale);
  if (options.ema) ema_ = std::make_unique<optim::Ema>(fabric, *options.ema, *weights_);
  std::vector<const models::Pass*> passes = {train_pass_.get()};
  for (const auto& pass : forward_passes_) passes.push_back(pass.get());
  inputs_ = std::make_unique<PassInputs>(passes, geometry_.micro_batch, queue_, ledger_);
  const bool repeats = options_.graphs > 0 && graphs_problem().empty();
  sums_ = std::make_unique<StepSums>(*model_, geometry_, mesh_, queue_, ledger_, repeats);
  if (kind == Kind::cuda && repeats)
    graphs_ = std::make_unique<device::Graphs>(queue_, options_.graphs, "passes");
  const int64_t activations = measure_arena();
  if (kind == Kind::cuda && options.choose_products) options.choose_products(queue_);
  arena_ = std::make_unique<device::Arena>(kind, ledger_, "activations", activations);
  for (size_t u = 0; u < layout_->units().size(); ++u) owned_.push_back({int(u), {}, {}});
}

Engine::~Engine() = default;

void Engine::initialise() {
  weights_->initialise(uint64_t(options_.seed));
  ema_starts_ = true;
}

void Engine::publish() {
  weights_->publish();
  if (ema_ && ema_starts_) ema_->start();
  if (ema_) ema_->changed();
  ema_starts_ = false;
}

models::ForwardPass* Engine::find_pass(const std::string& name) const {
  for (const auto& pass : forward_passes_)
    if (pass->name() == name) return pass.get();
  return nullptr;
}

// Plans passes of all shapes to find the sizes of the arena and, on GPUs, of the scratch. Planned
// passes also prepare the products of the real ones, so no step prepares any.
int64_t Engine::measure_arena() {
  auto world = comm::make_plan_comm(mesh_.shape.ranks());
  comm::Mesh mesh = comm::make_plan_mesh(mesh_.shape, *world);
  device::Queue queue(Kind::plan, queue_.threads(), queue_.fixed_order(), queue_.device());
  queue.set_tf32(options_.tf32);
  queue.set_prepares(queue_.kind() == Kind::cpu ||
                     (queue_.kind() == Kind::cuda && options_.choose_products));
  device::Ledger ledger;
  device::Arena arena;
  shard::Fabric fabric{*layout_, mesh, queue, ledger, options_.determinism.mesh, options_.operands};
  shard::WeightStore weights(fabric, int(options_.sharding.prefetch));
  shard::StateStore states(fabric);
  nn::BatchGroup group(mesh, geometry_.slices);
  const int64_t sets =
      queue.prepares() ? train_pass_->shape_sets(geometry_.micro_batch, geometry_.slices) : 1;
  for (int64_t set = 0; set < sets; ++set) {
    shard::GradientStore gradients(fabric, geometry_.accumulation);
    gradients.begin_step();
    // The first pass overwrites gradients and the second adds to them, so both are planned.
    for (int64_t m = 0; m < std::min<int64_t>(geometry_.accumulation, 2); ++m)
      pass({weights, gradients, states, group, queue, arena}, 1, m, set);
  }
  nn::Context ctx{.queue = queue,
                  .arena = arena,
                  .weights = weights,
                  .gradients = nullptr,
                  .batch = geometry_.micro_batch,
                  .slices = geometry_.slices,
                  .keep = false};
  for (size_t p = 0; p < forward_passes_.size(); ++p)
    forward_passes_[p]->plan(ctx, inputs_->of(p + 1));
  if (queue_.kind() == Kind::cuda && queue.scratch_bytes()) queue_.scratch(queue.scratch_bytes());
  if (queue_.kind() == Kind::plan) queue_.need_scratch(queue.scratch_bytes());
  return arena.peak();
}

void Engine::pass(const Workplace& at, int64_t step, int64_t m, int64_t shape_set) {
  nn::Context ctx{
      .queue = at.queue,
      .arena = at.arena,
      .weights = at.weights,
      .gradients = &at.gradients,
      .batch = geometry_.micro_batch,
      .slices = geometry_.slices,
      .first_example = (step - 1) * geometry_.global_batch + geometry_.first_example(mesh_, m),
      .train = true,
      .dropout = base::Stream(uint64_t(options_.seed), "dropout").sub(uint64_t(step)),
      .loss_scale = optimizer_->loss_scale(),
      .shape_set = shape_set,
      .graphs = &at.queue == &queue_ ? graphs_.get() : nullptr,
      // Tells apart the place of the inputs, and whether gradients are overwritten or added to.
      .graph_kind = inputs_->set() * 2 + (m > 0),
      .group = &at.group,
      .states = &at.states};
  at.gradients.begin_micro_batch(m);
  train_pass_->run(ctx, inputs(), geometry_.global_batch, sums_->place_of(m));
}

// Returns why graphs cannot repeat passes; "" if they can.
std::string Engine::graphs_problem() const {
  if (std::string problem = model_->changing_arguments(); !problem.empty()) return problem;
  if (options_.determinism.mesh) return kTreeInPasses;
  for (const shard::Unit& unit : layout_->units())
    if (unit.strategy.parameters_sharded && layout_->fsdp() > 1)
      return fmt::format(
          "passes gather parameters that are sharded over {} ranks (sharding.parameters)",
          layout_->fsdp());
  return "";
}

std::string Engine::graphs_text() const {
  if (options_.graphs == 0) return "";
  if (const std::string problem = graphs_problem(); !problem.empty())
    return "none, though run.cuda_graph = \"on\": " + problem;
  return fmt::format(
      "forward and backward of a pass are recorded when their shapes come again, then one launch; "
      "at most {} graphs (run.cuda_graph_limit); evaluations and updates run without",
      options_.graphs);
}

void Engine::submit(int64_t step, const Source& source) {
  Fill fill;
  if (source)
    fill = [&](int64_t m, const models::Inputs& into) {
      train_pass_->prepare(source(m), draws(step), into);
    };
  run_passes(step, fill, geometry_.accumulation);
}

void Engine::run_passes(int64_t step, const Fill& fill, int64_t passes) {
  CHECK(passes == geometry_.accumulation || queue_.kind() == Kind::plan, "a step of {} passes",
        passes);
  device::Range whole("step", step);
  device::NoWaits no_waits("step", options_.forbid_waits && ++submitted_ > 2);
  const device::Transfers transfers_before = device::transfers();
  const int64_t flops_before = host::hardware_flops(queue_);
  const double comm_before = mesh_.fsdp->seconds() + mesh_.replica->seconds();
  StepReport& report = reports_[step];
  gradients_->begin_step();
  states_->begin_step(*weights_);
  for (int64_t m = 0; m < passes; ++m) {
    device::Range range("pass", m);
    if (fill) {
      // begin() may wait for the GPU, so the stopwatch for data starts after it.
      const models::Inputs& into = inputs_->begin(0);
      base::Stopwatch watch;
      fill(m, into);
      data_s_ += watch.seconds();
      inputs_->upload(0);
    }
    pass({*weights_, *gradients_, *states_, *group_, queue_, *arena_}, step, m);
    inputs_->queued();
    sums_->finish_pass(m);
  }
  {
    device::Range range("reduce");
    gradients_->finish_step();
    sums_->finish_step(step);
  }

  for (optim::OwnedUnit& u : owned_) {
    u.weights = weights_->owned(u.unit);
    u.gradient =
        layout_->units()[size_t(u.unit)].trained() ? gradients_->owned(u.unit) : device::View{};
  }
  device::Range range("update");
  optimizer_->inspect(step, owned_, sums_->loss());
  optimizer_->apply(step);
  states_->commit(*weights_, optimizer_->decision());
  if (ema_) ema_->update(step, optimizer_->decision());
  weights_->publish(true);
  comm_s_ += mesh_.fsdp->seconds() + mesh_.replica->seconds() - comm_before;
  report.flops = host::hardware_flops(queue_) - flops_before;
  report.transfers = device::transfers().since(transfers_before);
}

const StepReport& Engine::report(int64_t step) {
  StepReport& report = reports_[step];
  const optim::Report& update = optimizer_->report(step);
  report.gradients = update.gradients;
  report.update = update.update;
  report.finite = update.gradients.applied;
  report.data_s = std::exchange(data_s_, 0);
  report.comm_s = std::exchange(comm_s_, 0);
  if (queue_.kind() == Kind::plan) return report;
  sums_->read(step, report);
  return report;
}

nn::Context Engine::forward_context(Weights on) {
  CHECK(on == Weights::raw || ema_, "no average of the weights is kept");
  return {.queue = queue_,
          .arena = *arena_,
          .weights = on == Weights::ema ? ema_->average() : *weights_,
          .gradients = nullptr,
          .batch = geometry_.micro_batch,
          .slices = geometry_.slices,
          .keep = false};
}

void Engine::forward(const models::ForwardPass& pass, const Prepare& prepare, const Run& run,
                     Weights on) {
  size_t number = 1;
  while (number <= forward_passes_.size() && forward_passes_[number - 1].get() != &pass) ++number;
  CHECK(number <= forward_passes_.size(), "the pass \"{}\" is not among those that were planned",
        pass.name());
  prepare(inputs_->begin(number));
  inputs_->upload(number);
  nn::Context ctx = forward_context(on);
  run(ctx, inputs_->of(number));
  inputs_->queued();
}

std::vector<shard::TensorSlice> Engine::state() {
  std::vector<shard::TensorSlice> out;
  const auto& parameters = layout_->parameters();
  out.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    out[i].name = "/params/" + parameters[i].path;
    out[i].shape = parameters[i].shape;
    out[i].writes = mesh_.replica_index == 0;
  }
  // Each fsdp rank of replica 0 writes the parts that it holds. A unit that all of them hold whole
  // is written by fsdp rank 0.
  for (size_t u = 0; u < layout_->units().size(); ++u) {
    int64_t begin = weights_->held_begin(int(u));
    device::View held = weights_->held(int(u));
    for (const shard::Segment& s : layout_->segments(int(u), begin, held.count))
      out[size_t(s.parameter)].parts.push_back({s.begin, s.end, held.f32() + s.offset});
    bool whole = held.count == layout_->units()[u].length;
    if (whole)
      for (int p : layout_->units()[u].parameters)
        out[size_t(p)].writes = mesh_.replica_index == 0 && mesh_.fsdp_index == 0;
  }
  for (shard::TensorSlice& slice : optimizer_->state()) out.push_back(std::move(slice));
  if (ema_) ema_->list_state(out);
  return out;
}

}  // namespace step
