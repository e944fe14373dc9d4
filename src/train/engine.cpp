#include "train/engine.hpp"

#include <cmath>
#include <limits>

#include "base/clock.hpp"
#include "device/range.hpp"

namespace train {
using device::DType;
using device::Kind;

Engine::Engine(const EngineOptions& options, comm::Mesh& mesh, Kind kind)
    : options_(options),
      mesh_(mesh),
      queue_(kind, options.threads, options.determinism.mesh()),
      geometry_(derive_geometry(options.global_batch, options.micro_batch, mesh.shape, options.determinism)),
      model_(models::make_model(options.model, options.loss, options.memory)) {
  queue_.set_tf32(options.tf32);
  std::vector<shard::Parameter> parameters = model_->parameters();
  std::vector<optim::ParameterPolicy> policies;
  std::vector<optim::Schedule> schedules;
  options_.resolve(parameters, policies, schedules);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].trainable = !policies[i].frozen;
    if (parameters[i].trainable)
      parameters[i].element_state_bytes = options.optimizer.method_options().element_state_bytes(parameters[i].shape);
  }
  int64_t cuts = options.determinism.mesh() ? geometry_.total_slices : mesh.shape.fsdp;
  layout_ =
      std::make_unique<shard::Layout>(std::move(parameters), model_->blocks(), options.sharding, mesh.shape.fsdp, cuts);

  shard::Fabric fabric{*layout_, mesh_, queue_, ledger_, options.determinism.mesh(), options.operands};
  weights_ = std::make_unique<shard::WeightStore>(fabric, int(options.sharding.prefetch));
  gradients_ = std::make_unique<shard::GradientStore>(fabric, geometry_.accumulation);
  optimizer_ = std::make_unique<optim::Engine>(fabric, options.optimizer, std::move(policies), std::move(schedules),
                                               options.groups, options.loss_scale);
  for (const models::InputSpec& spec : model_->inputs()) {
    int64_t count = spec.per_example * geometry_.micro_batch;
    input_buffers_.emplace_back(kind, ledger_, "batch", count * device::size_of(spec.type));
    models::Input input = input_buffers_.back().view(spec.type).slice(0, count);
    if (kind == Kind::cuda) input.host.data = host_buffers_.emplace_back(kind, input.host.bytes()).data();
    inputs_[spec.name] = input;
  }
  arena_ = std::make_unique<device::Arena>(kind, ledger_, "activations", measure_arena());
  sums_.resize(size_t(geometry_.accumulation));
  slice_sums_.resize(size_t(geometry_.slices));
  for (size_t u = 0; u < layout_->units().size(); ++u) owned_.push_back({int(u), {}, {}});
}

Engine::~Engine() = default;

// A pass on paper finds what the arena must hold; passes of all shapes prepare what the real ones need, so that no step does.
int64_t Engine::measure_arena() {
  auto world = comm::make_plan_comm(mesh_.shape.ranks());
  comm::Mesh mesh = comm::make_plan_mesh(mesh_.shape, *world);
  device::Queue queue(Kind::plan, queue_.threads(), queue_.fixed_order());
  queue.set_prepares(queue_.kind() == Kind::cpu);
  device::Ledger ledger;
  device::Arena arena;
  shard::Fabric fabric{*layout_, mesh, queue, ledger, options_.determinism.mesh(), options_.operands};
  shard::WeightStore weights(fabric, int(options_.sharding.prefetch));
  const int64_t sets = queue.prepares() ? model_->shape_sets(geometry_.micro_batch, geometry_.slices) : 1;
  for (int64_t set = 0; set < sets; ++set) {
    shard::GradientStore gradients(fabric, geometry_.accumulation);
    gradients.begin_step();
    for (int64_t m = 0; m < std::min<int64_t>(geometry_.accumulation, 2); ++m)  // what is written first is added to later
      pass(weights, gradients, queue, arena, 1, m, nullptr, set);
  }
  nn::Context ctx{.queue = queue,
                  .arena = arena,
                  .weights = weights,
                  .gradients = nullptr,
                  .batch = geometry_.micro_batch,
                  .slices = geometry_.slices,
                  .keep = false};
  model_->evaluate(ctx, inputs_, nullptr, nullptr);
  return arena.peak();
}

void Engine::pass(shard::WeightStore& weights, shard::GradientStore& gradients, device::Queue& queue,
                  device::Arena& arena, int64_t step, int64_t m, models::Sums* sums, int64_t shape_set) {
  nn::Context ctx{.queue = queue,
                  .arena = arena,
                  .weights = weights,
                  .gradients = &gradients,
                  .batch = geometry_.micro_batch,
                  .slices = geometry_.slices,
                  .first_example = (step - 1) * geometry_.global_batch + geometry_.first_example(mesh_, m),
                  .train = true,
                  .dropout = base::Stream(uint64_t(options_.seed), "dropout").sub(uint64_t(step)),
                  .loss_scale = optimizer_->loss_scale(),
                  .shape_set = shape_set};
  gradients.begin_micro_batch(m);
  model_->forward_backward(ctx, inputs_, geometry_.global_batch, sums);
}

const StepReport& Engine::run_passes(int64_t step, const Feed& feed, int64_t passes) {
  CHECK(passes == geometry_.accumulation || queue_.kind() == Kind::plan, "a step of {} passes", passes);
  device::Range whole("step", step);
  double comm_before = mesh_.fsdp->seconds() + mesh_.replica->seconds();
  base::Stopwatch watch;
  report_.data_s = report_.forward_backward_s = 0;
  gradients_->begin_step();
  for (int64_t m = 0; m < passes; ++m) {
    device::Range range("pass", m);
    watch.restart();
    if (feed) feed(m, inputs_), upload_inputs();
    report_.data_s += watch.restart();
    std::fill(slice_sums_.begin(), slice_sums_.end(), models::Sums{});
    pass(*weights_, *gradients_, queue_, *arena_, step, m, slice_sums_.data());
    base::TreeSum tree;
    auto add = [&](int into, int from) {
      for (int i = 0; i < models::Sums::count; ++i) slice_sums_[size_t(into)].v[i] += slice_sums_[size_t(from)].v[i];
    };
    // Slot s <= j always, so finished slices can fold in place at the front.
    for (int64_t j = 0; j < geometry_.slices; ++j) {
      slice_sums_[size_t(tree.next_slot())] = slice_sums_[size_t(j)];
      tree.push(add);
    }
    tree.finish(add);
    sums_[size_t(m)] = slice_sums_[0];
    report_.forward_backward_s += watch.restart();
  }
  {
    device::Range range("reduce");
    gradients_->finish_step();
    add_sums(sums_);
  }
  report_.reduce_s = watch.restart();

  for (optim::OwnedUnit& u : owned_) {
    u.weights = weights_->owned(u.unit);
    u.gradient = layout_->units()[size_t(u.unit)].trainable ? gradients_->owned(u.unit) : device::View{};
  }
  device::Range range("update");
  report_.gradients = optimizer_->inspect(owned_);
  report_.finite = report_.gradients.finite && std::isfinite(report_.loss);
  if (queue_.kind() == Kind::plan) report_.finite = true;
  if (report_.finite) {
    report_.update = optimizer_->apply(step);
    weights_->publish();
  }
  report_.update_s = watch.restart();
  report_.comm_s = mesh_.fsdp->seconds() + mesh_.replica->seconds() - comm_before;
  return report_;
}

void Engine::upload_inputs() {
  for (const auto& [name, input] : inputs_) device::upload(input.device, input.host.data, queue_);
}

// Sums over slices follow the tree: within the pass (done), over fsdp, over passes, over replicas.
void Engine::add_sums(std::vector<models::Sums>& sums) {
  device::View all{sums.data(), DType::f64, int64_t(sums.size()) * models::Sums::count};
  mesh_.fsdp->all_reduce(all).wait();
  base::TreeSum tree;
  auto add = [&](int into, int from) {
    for (int i = 0; i < models::Sums::count; ++i) sums[size_t(into)].v[i] += sums[size_t(from)].v[i];
  };
  for (size_t m = 0; m < sums.size(); ++m) {
    sums[size_t(tree.next_slot())] = sums[m];
    tree.push(add);
  }
  tree.finish(add);
  mesh_.replica->all_reduce({sums.data(), DType::f64, models::Sums::count}).wait();
  const double* v = sums[0].v;
  auto ratio = [](double a, double b) { return b > 0 ? a / b : std::numeric_limits<double>::quiet_NaN(); };
  using S = models::Sums;
  report_.loss = v[S::loss] / double(geometry_.global_batch);
  report_.loss_ar = ratio(v[S::loss_ar], v[S::examples_ar]);
  report_.loss_parallel = ratio(v[S::loss_parallel], v[S::examples_parallel]);
  report_.token_nll = ratio(v[S::token_nll], v[S::tokens]);
  report_.examples_ar = v[S::examples_ar], report_.examples_parallel = v[S::examples_parallel];
}

nn::Context Engine::forward_context() {
  return {.queue = queue_,
          .arena = *arena_,
          .weights = *weights_,
          .gradients = nullptr,
          .batch = geometry_.micro_batch,
          .slices = geometry_.slices,
          .keep = false};
}

void Engine::evaluate(const models::HostBatch& batch, double* nll, double* weight) {
  model_->prepare(batch, false, {}, nullptr, inputs_);
  upload_inputs();
  nn::Context ctx = forward_context();
  model_->evaluate(ctx, inputs_, nll, weight);
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
  // What every rank holds is written by the one whose fsdp part it is, so that writing is shared even where holding is
  // not.
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
  return out;
}

}  // namespace train
