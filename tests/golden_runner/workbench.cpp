// SPDX-License-Identifier: Apache-2.0
#include "workbench.hpp"

#include "train/recipe.hpp"

namespace golden {

using device::DType;
using device::View;

namespace {

shard::ShardingOptions sharding_of(const Settings& settings) {
  using shard::Placement;
  shard::ShardingOptions o;
  o.parameters = settings.strategy == "sharded" ? Placement::sharded : Placement::replicated;
  o.optimizer = settings.strategy == "replicated" ? Placement::replicated : Placement::sharded;
  return o;
}

DType operands_of(const Settings& settings) {
  train::PrecisionOptions precision;
  precision.compute = settings.compute;
  return precision.type();
}

}  // namespace

Workbench::Workbench(const models::ParameterList& list, const step::Geometry& geometry,
                     const Settings& settings, comm::Mesh& mesh)
    : geometry_(geometry),
      mesh_(mesh),
      queue_(settings.device, settings.threads, settings.determinism.mesh()),
      layout_(list.parameters(), list.blocks(), sharding_of(settings), mesh.shape.fsdp,
              settings.determinism.mesh() ? geometry.total_slices : mesh.shape.fsdp),
      fabric_{layout_, mesh, queue_, ledger_, settings.determinism.mesh(), operands_of(settings)},
      weights_(fabric_, 1),
      gradients_(fabric_, geometry.accumulation),
      states_(fabric_),
      arena_(settings.device, ledger_, "activations", int64_t{64} << 20),
      group_(mesh, geometry.slices) {
  queue_.set_tf32(settings.compute == host::Compute::tf32);
}

int Workbench::find(const std::string& path) const {
  const int parameter = layout_.find(path);
  CHECK(parameter >= 0, "there is no parameter {}", path);
  return parameter;
}

nn::Context Workbench::context(int64_t step, bool train) {
  return {{.queue = queue_, .arena = arena_},
          {.weights = weights_, .gradients = &gradients_, .states = &states_, .group = &group_},
          {.batch = geometry_.micro_batch,
           .slices = geometry_.slices,
           .first_example = geometry_.first_example(mesh_, 0),
           .step = step,
           .passes = geometry_.accumulation},
          {.train = train, .keep = train}};
}

void Workbench::set(const std::string& path, const Floats& values) {
  const int parameter = find(path), unit = layout_.parameters()[size_t(parameter)].unit;
  CHECK(layout_.parameters()[size_t(parameter)].size == int64_t(values.size()), "{}: {} values",
        path, values.size());
  const View held = weights_.held(unit);
  for (const shard::Segment& s : layout_.segments(unit, weights_.held_begin(unit), held.count))
    if (s.parameter == parameter)
      device::upload(held.slice(s.offset, s.count()), values.data() + s.begin, queue_);
  states_.values_changed();
}

void Workbench::begin_step() {
  queue_.synchronize();
  buffers_.clear();
  gradients_.begin_step();
  gradients_.begin_micro_batch(0);
  states_.begin_step(weights_);
}

void Workbench::finish_step() {
  gradients_.finish_step();
  states_.commit(weights_, copy(Floats{1, 1, 1}));
  weights_.publish(true);
}

template <class T>
View Workbench::upload(const std::vector<T>& values, DType type) {
  const int64_t count = int64_t(values.size());
  buffers_.emplace_back(queue_.kind(), ledger_, "golden",
                        std::max<int64_t>(1, count) * device::size_of(type));
  const View view = buffers_.back().view(type).slice(0, count);
  device::upload(view, values.data(), queue_);
  return view;
}
View Workbench::copy(const Floats& values) { return upload(values, DType::f32); }
View Workbench::copy(const std::vector<int32_t>& values) { return upload(values, DType::i32); }

Workbench::Floats Workbench::read(const View& view) {
  Floats out(static_cast<size_t>(view.count));
  device::download(out.data(), view, queue_);
  return out;
}

Workbench::Floats Workbench::state(const std::string& path) {
  return read(states_.next(find(path)));
}

void Workbench::for_gradients(
    const std::function<void(const shard::Parameter&, int64_t, const Floats&)>& f) {
  for (int u = 0; u < int(layout_.units().size()); ++u) {
    if (!layout_.units()[size_t(u)].trained()) continue;
    const View mine = gradients_.owned(u);
    for (const shard::Segment& s :
         layout_.segments(u, layout_.owned_begin(u, mesh_.fsdp_index), layout_.owned_count(u)))
      f(layout_.parameters()[size_t(s.parameter)], s.begin, read(mine.slice(s.offset, s.count())));
  }
}

double tolerance_of(const CaseFile& file, const std::string& set, const Settings& settings,
                    double part) {
  if (settings.compute == host::Compute::f32) return file.tolerance(set);
  double largest = 0;
  for (float v : file.floats(set, file.shape(set)))
    largest = std::max(largest, std::abs(double(v)));
  return part * largest * (settings.compute == host::Compute::bf16 ? 1 : 0.125);
}

}  // namespace golden
