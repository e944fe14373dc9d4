// SPDX-License-Identifier: Apache-2.0
// The parameters of a model, or of parts of one, on one rank: in real stores, with an arena and
// contexts for passes over one batch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "models/model.hpp"

namespace one_rank {

using device::View;
using Floats = std::vector<float>;

struct Settings {
  int64_t batch = 1, slices = 1;
  device::DType operands = device::DType::f32;  // of products
  int threads = 1;
  bool tree = false;  // sums as in level "mesh"
};

class Stores {
 public:
  Stores(const std::vector<shard::Parameter>& parameters, const std::vector<std::string>& blocks,
         const Settings& settings)
      : settings_(settings),
        ranks_(comm::make_plan_comm(1)),
        mesh_(comm::make_plan_mesh({1, 1}, *ranks_)),
        queue_(device::Kind::cpu, settings.threads, true),
        layout(parameters, blocks, {}, 1, 1),
        weights(fabric(), 0),
        gradients(fabric(), 1) {}

  View weight(const std::string& path) { return weights.weight(layout.find(path)); }
  View gradient(const std::string& path) const {
    const shard::Parameter& p = layout.parameters().at(size_t(layout.find(path)));
    return gradients.owned(p.unit).slice(p.offset, p.size);
  }
  Floats gradient_values(const std::string& path) const {
    const View g = gradient(path);
    return {g.f32(), g.f32() + g.count};
  }
  // Sets all weights to initial values with noise, so that no gradient vanishes.
  // noise(path): its standard deviation. The noise of a parameter is drawn from stream name/path.
  template <class Noise>
  void shake(uint64_t seed, const std::string& name, const Noise& noise) {
    weights.initialise(seed);
    for (const shard::Parameter& p : layout.parameters()) {
      const View w = weight(p.path);
      const base::Stream s(seed, name + "/" + p.path);
      const double scale = noise(p.path);
      for (int64_t i = 0; i < w.count; ++i) w.f32()[i] += float(scale * s.normal(uint64_t(i)));
    }
    weights.publish();
  }

  // Makes buffers for the inputs of a pass.
  models::Inputs make_inputs(const std::vector<models::InputSpec>& specs) {
    models::Inputs out;
    for (const models::InputSpec& spec : specs) {
      const int64_t count = spec.per_example * settings_.batch;
      buffers_.emplace_back(device::Kind::cpu, ledger_, "batch",
                            count * device::size_of(spec.type));
      out[spec.name] = buffers_.back().view(spec.type).slice(0, count);
    }
    return out;
  }
  // Makes the arena of context().
  void make_arena(int64_t bytes) { arena_ = std::make_unique<device::Arena>(arena_of(bytes)); }
  // Makes an arena for the passes that `plan` runs. `plan` gets a context of a training pass and
  // one of a forward pass. Both only count memory.
  template <class Plan>
  void make_arena_for(const Plan& plan) {
    device::Queue paper(device::Kind::plan, 1, true);
    device::Arena measure;
    nn::Context train = context(paper, measure, true), forward = context(paper, measure, false);
    plan(train, forward);
    make_arena(measure.peak());
  }
  // Calls run(ctx) with a context of a forward pass. Its own arena is as large as plan(ctx) needs.
  template <class Plan, class Run>
  void run_planned(const Plan& plan, const Run& run) {
    device::Queue paper(device::Kind::plan, 1, true);
    device::Arena measure;
    nn::Context planned = context(paper, measure, false);
    plan(planned);
    device::Arena arena = arena_of(measure.peak());
    nn::Context ctx = context(queue_, arena, false);
    run(ctx);
  }
  nn::Context context(bool train) { return context(queue_, *arena_, train); }
  device::Arena& arena() { return *arena_; }
  int64_t batch() const { return settings_.batch; }

  // Calls work(ctx) with the context of a training pass, between the begin and the end of a step.
  template <class Work>
  void train(const Work& work) {
    nn::Context ctx = context(true);
    gradients.begin_step();
    gradients.begin_micro_batch(0);
    work(ctx);
    gradients.finish_step();
  }

  comm::Mesh& mesh() { return mesh_; }
  shard::Fabric fabric() {
    return {layout, mesh_, queue_, ledger_, settings_.tree, settings_.operands};
  }

 private:
  device::Arena arena_of(int64_t bytes) {
    return {device::Kind::cpu, ledger_, "activations", bytes};
  }
  nn::Context context(device::Queue& queue, device::Arena& arena, bool train) {
    return {{.queue = queue, .arena = arena},
            {.weights = weights, .gradients = train ? &gradients : nullptr},
            {.batch = settings_.batch, .slices = settings_.slices},
            {.train = train, .keep = train}};
  }

  Settings settings_;
  std::unique_ptr<comm::Comm> ranks_;
  comm::Mesh mesh_;
  device::Queue queue_;
  device::Ledger ledger_;
  std::vector<device::Buffer> buffers_;
  std::unique_ptr<device::Arena> arena_;

 public:
  shard::Layout layout;
  shard::WeightStore weights;
  shard::GradientStore gradients;
};

// Copies the fields of a batch that inputs are.
inline void copy_fields(const models::HostBatch& batch, const std::vector<models::InputSpec>& specs,
                        const models::Inputs& into) {
  for (const models::InputSpec& spec : specs) {
    if (spec.field.empty()) continue;
    const View field = batch.features.at(spec.field), to = into.at(spec.name).host;
    CHECK(field.type == to.type && field.count == to.count, "field {}", spec.field);
    std::memcpy(to.data, field.data, size_t(field.bytes()));
  }
}

inline double norm_of(const Floats& gradient) {
  double square = 0;
  for (float g : gradient) square += double(g) * double(g);
  return std::sqrt(square);
}

// Returns the derivative of loss() along a gradient of w, by differences of fourth order with steps
// of length h. If the gradient is right, the result is its norm.
template <class Loss>
double slope_along(const Floats& gradient, View w, double h, const Loss& loss) {
  const Floats before(w.f32(), w.f32() + w.count);
  const double norm = norm_of(gradient);
  auto at = [&](double way) {
    for (int64_t i = 0; i < w.count; ++i)
      w.f32()[i] = float(double(before[size_t(i)]) + way * double(gradient[size_t(i)]) / norm);
    return loss();
  };
  const double near = at(h) - at(-h), far = at(2 * h) - at(-2 * h);
  std::copy(before.begin(), before.end(), w.f32());
  return (8 * near - far) / (12 * h);
}

}  // namespace one_rank
