// SPDX-License-Identifier: Apache-2.0
#include "step/engine.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/span.hpp"
#include "host/mfu.hpp"
#include "shard/tensor_roots.hpp"

namespace step {
using device::DType;
using device::Kind;

Engine::Engine(const EngineOptions& options, comm::Mesh& mesh, Kind kind)
    : options_(options),
      mesh_(mesh),
      queue_(kind, options.threads, options.determinism.mesh(), options.paper_of),
      geometry_(options.trains ? derive_geometry(options.global_batch, options.micro_batch,
                                                 mesh.shape, options.determinism)
                               : forward_geometry(options.micro_batch, mesh.shape)) {
  queue_.count_scratch(ledger_);
  queue_.set_tf32(options.tf32);
  make_passes();
  std::vector<shard::Parameter> parameters = model().parameters();
  shard::apply_init_rules(options.init, parameters);
  std::vector<optim::ParameterPolicy> policies;
  std::vector<optim::Schedule> schedules;
  if (options.trains) options_.resolve(parameters, policies, schedules);
  for (size_t i = 0; i < policies.size(); ++i) {
    if (policies[i].frozen && parameters[i].trained())
      parameters[i].kind = shard::ParameterKind::frozen;
    policies[i].frozen = !parameters[i].trained();
    if (parameters[i].trained())
      parameters[i].element_state_bytes = options.optimizer.method_options(policies[i].rule)
                                              .element_state_bytes(parameters[i].shape);
  }
  int64_t cuts = options.determinism.mesh() ? geometry_.total_slices : mesh.shape.fsdp;
  stores_.layout = std::make_unique<shard::Layout>(std::move(parameters), model().blocks(),
                                                   options.sharding, mesh.shape.fsdp, cuts);

  shard::Fabric fabric{*stores_.layout, mesh_, queue_, ledger_, options.determinism.mesh(),
                       options.operands};
  stores_.weights = std::make_unique<shard::WeightStore>(fabric, int(options.sharding.prefetch));
  if (options.trains) {
    stores_.gradients = std::make_unique<shard::GradientStore>(fabric, geometry_.accumulation,
                                                               options.bucket_bytes);
    stores_.states = std::make_unique<shard::StateStore>(fabric);
    stores_.group = std::make_unique<nn::BatchGroup>(mesh_, geometry_.slices);
    update_.optimizer = std::make_unique<optim::Optimizer>(
        fabric, options.optimizer, std::move(policies), std::move(schedules), options.groups,
        options.loss_scale);
    if (options.ema)
      update_.ema = std::make_unique<optim::SecondWeights>(fabric, optim::ema_options(*options.ema),
                                                           *stores_.weights);
    if (options.noise)
      update_.noise = std::make_unique<optim::Noise>(fabric, *options.noise, uint64_t(options.seed),
                                                     *stores_.weights);
    make_teacher(fabric);
  }
  make_typed_weights(fabric);
  std::vector<const models::Pass*> passes = {passes_.train.get()};
  for (const Forward& f : passes_.forward) passes.push_back(f.pass.get());
  passes_.inputs = std::make_unique<PassInputs>(
      passes, geometry_.micro_batch, two_phases() ? geometry_.accumulation : 1, queue_, ledger_);
  const bool repeats = options_.graphs > 0 && graphs_problem().empty();
  if (options.trains)
    sums_ = std::make_unique<StepSums>(model(), geometry_, mesh_, queue_, ledger_, repeats);
  if (kind == Kind::cuda && repeats)
    graphs_ = std::make_unique<device::Graphs>(queue_, options_.graphs, "passes");
  const int64_t activations = measure_arena();
  if (kind == Kind::cuda && options.choose_products) options.choose_products(queue_);
  arena_ = std::make_unique<device::Arena>(kind, ledger_, "activations", activations);
  for (size_t u = 0; u < stores_.layout->units().size(); ++u)
    update_.owned.push_back({int(u), {}, {}});
}

Engine::~Engine() = default;

void Engine::make_teacher(const shard::Fabric& fabric) {
  const std::optional<models::TeacherSpec> spec = model().teacher();
  if (!spec) return;
  stores_.teacher_options = {
      .root = shard::kTeacherRoot,
      .keep = [keep = spec->keep, total = options_.total_steps](
                  int64_t step) -> std::optional<float> { return float(keep(step, total)); },
      .owns =
          [blocks = spec->blocks, states = spec->own_states](const shard::Unit& unit) {
            const bool has = unit.trained() || (states && unit.kind == shard::ParameterKind::state);
            return has && std::find(blocks.begin(), blocks.end(), unit.block) != blocks.end();
          },
      .prefetch = int(options_.sharding.prefetch),
      .unit_rows = true};
  stores_.teacher =
      std::make_unique<optim::SecondWeights>(fabric, stores_.teacher_options, *stores_.weights);
}

void Engine::make_passes() {
  passes_.train = model().make_train_pass();
  passes_.coupled = dynamic_cast<models::CoupledPass*>(passes_.train.get());
  for (const SidePass& side : options_.passes) {
    std::unique_ptr<models::ForwardPass> made = side.make(model());
    passes_.numbers.emplace_back();
    if (!made) continue;
    const Products products = products_of(side.operands);
    const auto same = std::find_if(
        passes_.forward.begin(), passes_.forward.end(),
        [&](const Forward& f) { return f.pass->name() == made->name() && f.products == products; });
    passes_.numbers.back() = size_t(same - passes_.forward.begin());
    if (same == passes_.forward.end())
      passes_.forward.push_back({std::move(made), products, side.on_average});
    else
      same->on_average |= side.on_average;
  }
}

size_t Engine::number_of(PassId id) const {
  CHECK(id.position < passes_.numbers.size() && passes_.numbers[id.position],
        "the engine has no pass {}", id.position);
  return *passes_.numbers[id.position];
}

void Engine::make_typed_weights(const shard::Fabric& fabric) {
  std::map<device::DType, bool> types;  // true: on the average, too
  for (const Forward& f : passes_.forward)
    if (f.products.operands != options_.operands) types[f.products.operands] |= f.on_average;
  for (const auto& [type, on_average] : types) {
    shard::Fabric typed = fabric;
    typed.operands = type;
    stores_.typed.try_emplace(type, typed, *stores_.weights,
                              on_average ? update_.ema.get() : nullptr);
  }
}

void Engine::weights_changed() {
  for (auto& [type, weights] : stores_.typed) weights.changed();
}

void Engine::initialise() {
  stores_.weights->initialise(uint64_t(options_.seed));
  update_.followers_start = true;
}

void Engine::publish() {
  stores_.weights->publish();
  if (stores_.states) stores_.states->values_changed();
  for (optim::SecondWeights* follower : {update_.ema.get(), stores_.teacher.get()}) {
    if (!follower) continue;
    if (update_.followers_start) follower->start();
    follower->changed();
  }
  update_.followers_start = false;
  weights_changed();
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
  shard::Fabric fabric{*stores_.layout,  mesh, queue, ledger, options_.determinism.mesh(),
                       options_.operands};
  shard::WeightStore weights(fabric, int(options_.sharding.prefetch));
  if (options_.trains) plan_training(queue, arena, fabric, weights);
  nn::Context ctx{{.queue = queue, .arena = arena},
                  {.weights = weights},
                  {.batch = geometry_.micro_batch},
                  {.keep = false}};
  const device::Queue::RowsAlike alike(queue);
  for (size_t p = 0; p < passes_.forward.size(); ++p) plan_forward(ctx, fabric, p);
  if (queue_.kind() == Kind::cuda && queue.scratch_bytes()) queue_.scratch(queue.scratch_bytes());
  if (queue_.kind() == Kind::plan) queue_.need_scratch(queue.scratch_bytes());
  return arena.peak();
}

// Plans the passes of a step, with every set of shapes if products are prepared. On GPUs the second
// set counts too: its rows are packed, and scratch for packed rows is the same in all later sets.
void Engine::plan_training(device::Queue& queue, device::Arena& arena, const shard::Fabric& fabric,
                           shard::WeightStore& weights) {
  shard::StateStore states(fabric);
  nn::BatchGroup group(fabric.mesh, geometry_.slices);
  std::unique_ptr<optim::SecondWeights> second;
  std::optional<nn::Teacher> teacher;
  if (stores_.teacher) {
    second = std::make_unique<optim::SecondWeights>(fabric, stores_.teacher_options, weights);
    teacher.emplace(nn::Teacher{second->weights(), second->states()});
  }
  const int64_t all = passes_.train->shape_sets(geometry_.micro_batch, geometry_.slices),
                fewest = queue.device() == Kind::cuda ? 2 : 1,
                sets = queue.prepares() ? all : std::min(all, fewest);
  for (int64_t set = 0; set < sets; ++set) {
    shard::GradientStore gradients(fabric, geometry_.accumulation, options_.bucket_bytes);
    gradients.begin_step();
    states.begin_step(weights);
    // The first pass overwrites gradients and the second adds to them, so both are planned.
    run_phases({weights, gradients, states, group, teacher ? &*teacher : nullptr, queue, arena}, 1,
               std::min<int64_t>(geometry_.accumulation, 2), set,
               [](int64_t, bool, const auto& work) { work(); });
  }
  stores_.states->reserve(states);
  if (teacher && teacher->states) stores_.teacher->states()->reserve(*teacher->states);
}

// Plans a forward pass in its type. `ctx` and `fabric` are those of the plan.
void Engine::plan_forward(nn::Context ctx, const shard::Fabric& fabric, size_t number) {
  const Forward& forward = passes_.forward[number];
  shard::Fabric typed = fabric;
  typed.operands = forward.products.operands;
  shard::WeightStore weights(typed, 0, &ctx.weights, shard::WeightStore::lend_all);
  const bool other = typed.operands != options_.operands;
  nn::Context planned{ctx, {.weights = other ? weights : ctx.weights}, ctx, ctx};
  const device::Queue::Tf32 tf32(ctx.queue, forward.products.tf32);
  forward.pass->plan(planned, passes_.inputs->of(number + 1));
}

nn::Context Engine::context(const Workplace& at, int64_t step, int64_t m, int64_t shape_set) {
  const bool real = &at.queue == &queue_;
  // The kind of a graph depends on the set of inputs, and on whether gradients are overwritten or
  // added to.
  return {{.queue = at.queue,
           .arena = at.arena,
           .shape_set = shape_set,
           .graphs = real && !probe_ ? graphs_.get() : nullptr,
           .graph_kind = passes_.inputs->set() * 2 + (m > 0)},
          {.weights = at.weights,
           .gradients = &at.gradients,
           .states = &at.states,
           .teacher = at.teacher,
           .group = &at.group,
           .loss_scale = update_.optimizer->loss_scale()},
          {.batch = geometry_.micro_batch,
           .slices = geometry_.slices,
           .first_example = (step - 1) * geometry_.global_batch + geometry_.first_example(mesh_, m),
           .step = step,
           .total_steps = options_.total_steps,
           .pass = m,
           .passes = geometry_.accumulation},
          {.train = true,
           .dropout = base::Stream(uint64_t(options_.seed), "dropout").sub(uint64_t(step)),
           .watch = real ? probe_ : nullptr}};
}

template <class WithInputs>
void Engine::run_phases(const Workplace& at, int64_t step, int64_t passes, int64_t shape_set,
                        const WithInputs& with_inputs) {
  models::CoupledPass* coupled = passes_.coupled;
  const bool two_phases = this->two_phases();
  nn::Context whole = context(at, step, 0, shape_set);
  auto context_of = [&](int64_t m) {
    nn::Context ctx = context(at, step, m, shape_set);
    ctx.last = m + 1 == passes;
    return ctx;
  };
  if (coupled) coupled->begin_step(whole, geometry_.global_batch);
  for (int64_t m = 0; two_phases && m < passes; ++m)
    with_inputs(m, false, [&] {
      nn::Context ctx = context_of(m);
      ctx.gradients = nullptr;
      ctx.keep = false;
      ctx.watch = nullptr;  // the second phase computes the same outputs again
      coupled->embed(ctx, inputs());
    });
  if (two_phases) coupled->form_loss(whole);
  for (int64_t m = 0; m < passes; ++m)
    with_inputs(m, two_phases, [&] {
      nn::Context ctx = context_of(m);
      if (two_phases) ctx.states = nullptr;  // the first phase has written the next states
      // A graph holds no exchange, so with graphs exchanges begin after the passes.
      at.gradients.begin_micro_batch(m, ctx.last && !graphs_ && !options_.reduces_after);
      passes_.train->run(ctx, inputs(), geometry_.global_batch, sums_->place_of(m));
      if (&at.queue == &queue_) sums_->finish_pass(m);
    });
  if (coupled) coupled->end_step(whole);
}

// Returns why graphs cannot repeat passes; "" if they can.
std::string Engine::graphs_problem() const {
  if (std::string problem = model().changing_arguments(); !problem.empty()) return problem;
  if (options_.determinism.mesh()) return kTreeInPasses;
  for (const shard::Unit& unit : stores_.layout->units())
    if (unit.strategy.parameters_sharded && stores_.layout->fsdp() > 1)
      return fmt::format(
          "passes gather parameters that are sharded over {} ranks (sharding.parameters)",
          stores_.layout->fsdp());
  return "";
}

std::string Engine::graphs_text() const {
  if (options_.graphs == 0) return "";
  if (const std::string problem = graphs_problem(); !problem.empty())
    return "none, though run.cuda_graph = \"on\": " + problem;
  return fmt::format(
      "forward and backward of a pass are recorded when their shapes come again, then one launch; "
      "at most {} graphs (run.cuda_graph_limit); evaluations and updates run without{}",
      options_.graphs,
      mesh_.shape.ranks() > 1 ? "; gradients are exchanged after the passes, not beside them" : "");
}

void Engine::submit(int64_t step, const Source& source, const Prepare& prepare) {
  const Prepare own = [this, step](const models::HostBatch& batch, const models::Inputs& into) {
    passes_.train->prepare(batch, draws(step), into);
  };
  run_passes(step, source, prepare ? prepare : own, geometry_.accumulation);
}

void Engine::run_passes(int64_t step, const Source& source, const Prepare& prepare,
                        int64_t passes) {
  CHECK(options_.trains, "step {} of an engine that does not train", step);
  CHECK(passes == geometry_.accumulation || queue_.kind() == Kind::plan, "a step of {} passes",
        passes);
  base::Span whole("step", step, base::SpanKind::step);
  device::NoWaits no_waits("step", options_.forbid_waits && ++tally_.submitted > 2 && !probe_);
  const device::Transfers transfers_before = device::transfers();
  const int64_t flops_before = host::hardware_flops(queue_);
  const kernels::PathCounts paths_before = kernels::path_counts(queue_);
  const double comm_before = mesh_.fsdp->seconds() + mesh_.replica->seconds();
  StepReport& report = reports_[step];
  if (update_.noise) update_.noise->begin(step);
  stores_.gradients->begin_step();
  stores_.states->begin_step(*stores_.weights);
  std::optional<nn::Teacher> teacher;
  if (stores_.teacher) {
    stores_.teacher->begin_step();
    teacher.emplace(nn::Teacher{stores_.teacher->weights(), stores_.teacher->states()});
  }
  run_phases({*stores_.weights, *stores_.gradients, *stores_.states, *stores_.group,
              teacher ? &*teacher : nullptr, queue_, *arena_},
             step, passes, 0, [&](int64_t m, bool again, const auto& work) {
               base::Span span("pass", m);
               if (source) {
                 // begin() may wait for the GPU, so the stopwatch for data starts after it.
                 passes_.inputs->begin(0, two_phases() ? m : 0, again);
                 if (!again) {
                   base::TimedSpan waiting("fill inputs", base::SpanKind::load);
                   const models::HostBatch batch = source(m);
                   prepare(batch, passes_.inputs->take(0, batch));
                   tally_.data_s += waiting.end_s();
                 }
                 passes_.inputs->upload(0);
               }
               work();
               passes_.inputs->queued();
             });
  {
    base::Span span("reduce");
    sums_->begin_exchange();
    stores_.gradients->finish_step();
    sums_->finish_step(step);
  }

  if (update_.noise) update_.noise->end();
  for (optim::OwnedUnit& u : update_.owned) {
    u.weights = stores_.weights->owned(u.unit);
    u.gradient = stores_.layout->units()[size_t(u.unit)].trained()
                     ? stores_.gradients->owned(u.unit)
                     : device::View{};
  }
  base::Span span("update");
  if (probe_) probe_->before_update(update_.owned);
  update_.optimizer->inspect(step, update_.owned, sums_->loss());
  update_.optimizer->apply(step);
  stores_.states->commit(*stores_.weights, update_.optimizer->decision());
  if (probe_) probe_->after_update(update_.owned);
  if (update_.ema) update_.ema->update(step, update_.optimizer->decision());
  if (stores_.teacher) stores_.teacher->update(step, update_.optimizer->decision());
  stores_.weights->publish(true);
  weights_changed();
  tally_.comm_s += mesh_.fsdp->seconds() + mesh_.replica->seconds() - comm_before;
  report.flops = host::hardware_flops(queue_) - flops_before;
  report.transfers = device::transfers().since(transfers_before);
  report.paths = kernels::since(kernels::path_counts(queue_), paths_before);
}

const StepReport& Engine::report(int64_t step) {
  StepReport& report = reports_[step];
  const optim::Report& update = update_.optimizer->report(step);
  report.gradients = update.gradients;
  report.update = update.update;
  report.finite = update.gradients.applied;
  report.data_s = std::exchange(tally_.data_s, 0);
  report.comm_s = std::exchange(tally_.comm_s, 0);
  if (queue_.kind() == Kind::plan) return report;
  sums_->read(step, report);
  return report;
}

nn::Context Engine::forward_context(Weights on) {
  CHECK(on == Weights::raw || update_.ema, "no average of the weights is kept");
  return {{.queue = queue_, .arena = *arena_},
          {.weights = on == Weights::ema ? update_.ema->weights() : *stores_.weights},
          {.batch = geometry_.micro_batch},
          {.keep = false}};
}

void Engine::forward(PassId id, const models::HostBatch& batch, const Run& run, Weights on,
                     const Prepare& prepare) {
  const size_t number = number_of(id) + 1;  // 0 has the inputs of training
  passes_.inputs->begin(number);
  const models::Inputs& into = passes_.inputs->take(number, batch);
  if (prepare)
    prepare(batch, into);
  else
    passes_.forward[number - 1].pass->prepare(batch, into);
  passes_.inputs->upload(number);
  const Products& products = passes_.forward[number - 1].products;
  const auto typed = stores_.typed.find(products.operands);
  const nn::Context usual = forward_context(on);
  nn::Context ctx{usual,
                  {.weights = typed == stores_.typed.end() ? usual.weights : typed->second.get(on)},
                  usual,
                  usual};
  const device::Queue::Tf32 tf32(queue_, products.tf32);
  const device::Queue::RowsAlike alike(queue_);
  run(ctx, passes_.inputs->of(number));
  passes_.inputs->queued();
}

std::vector<shard::TensorSlice> Engine::state() {
  std::vector<shard::TensorSlice> out;
  const auto& parameters = stores_.layout->parameters();
  out.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    out[i].name = shard::kWeightRoot + parameters[i].path;
    out[i].shape = parameters[i].shape;
    out[i].writes = mesh_.replica_index == 0;
  }
  // Each fsdp rank of replica 0 writes the parts that it holds. A unit that all of them hold whole
  // is written by fsdp rank 0.
  for (size_t u = 0; u < stores_.layout->units().size(); ++u) {
    int64_t begin = stores_.weights->held_begin(int(u));
    device::View held = stores_.weights->held(int(u));
    for (const shard::Segment& s : stores_.layout->segments(int(u), begin, held.count))
      out[size_t(s.parameter)].parts.push_back({s.begin, s.end, held.f32() + s.offset});
    bool whole = held.count == stores_.layout->units()[u].length;
    if (whole)
      for (int p : stores_.layout->units()[u].parameters)
        out[size_t(p)].writes = mesh_.replica_index == 0 && mesh_.fsdp_index == 0;
  }
  if (!update_.optimizer) return out;
  for (shard::TensorSlice& slice : update_.optimizer->state()) out.push_back(std::move(slice));
  if (update_.ema) update_.ema->list_state(out);
  if (stores_.teacher) stores_.teacher->list_state(out);
  return out;
}

}  // namespace step
