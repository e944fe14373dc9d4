// One step on this rank: micro-batches forward and backward, reduction, norms, update. Knows model, stores and
// optimizer; no data set, no file, no clock but its own stopwatch. The same code runs under the plan back end, where it
// only counts.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "models/model.hpp"
#include "optim/engine.hpp"
#include "train/geometry.hpp"

namespace train {

struct EngineOptions {
  models::ModelOptions model;
  models::LossOptions loss;
  models::MemoryOptions memory;
  shard::ShardingOptions sharding;
  DeterminismOptions determinism;
  optim::OptimizerOptions optimizer;
  std::vector<std::string> groups;  // regular expressions: norms of each are reported
  int64_t global_batch = 0, micro_batch = 0;
  int64_t seed = 0;
  int threads = 1;
  device::DType operands = device::DType::f32;  // of products
  std::optional<optim::LossScaleOptions> loss_scale;
  bool tf32 = false;                            // f32 operands are rounded to it, on GPUs
  // Settings of each parameter and the schedules they name, once the model's parameters are known.
  std::function<void(const std::vector<shard::Parameter>&, std::vector<optim::ParameterPolicy>&,
                     std::vector<optim::Schedule>&)>
      resolve;
};

struct StepReport {
  double loss = 0, loss_ar = 0, loss_parallel = 0;  // means over the examples of each kind; NaN where there were none
  double token_nll = 0;                             // summed NLL / summed tokens
  double examples_ar = 0, examples_parallel = 0;
  bool finite = true;  // false: nothing was updated
  // Only because gradients were too large for fp16 at their loss scale, which has become smaller.
  bool overflow() const { return !finite && std::isfinite(loss) && gradients.next_loss_scale < gradients.loss_scale; }
  optim::Inspection gradients;
  optim::UpdateReport update;
  double forward_backward_s = 0, reduce_s = 0, update_s = 0, data_s = 0, comm_s = 0;
};

// What a step's decisions about its examples are drawn from.
inline base::Stream draws_of_step(int64_t seed, int64_t step) {
  return base::Stream(uint64_t(seed), "draws").sub(uint64_t(step));
}

class Engine {
 public:
  // kind: cpu, cuda (of the GPU in use), or plan (then the mesh is a plan mesh as well).
  Engine(const EngineOptions& options, comm::Mesh& mesh, device::Kind kind);
  ~Engine();

  // Fills the input buffers of pass m.
  using Feed = std::function<void(int64_t m, const models::Inputs& into)>;
  const StepReport& step(int64_t step, const Feed& feed) { return run_passes(step, feed, geometry_.accumulation); }
  // plan: with fewer passes. From the second pass on, each adds the same to every count of the step.
  void plan_step(int64_t passes) { run_passes(1, {}, passes); }
  // Weights changed from outside (initialise, restore): bring every copy up to date.
  void initialise() { weights_->initialise(uint64_t(options_.seed)); }
  void publish() { weights_->publish(); }

  // Forward only, for one batch of geometry().micro_batch examples: NLL and token weight per example.
  void evaluate(const models::HostBatch& batch, double* nll, double* weight);
  // Context for tests and other forward passes.
  nn::Context forward_context();
  const models::Inputs& inputs() const { return inputs_; }
  void upload_inputs();  // the host has filled them, outside of a step

  models::Model& model() { return *model_; }
  const shard::Layout& layout() const { return *layout_; }
  const Geometry& geometry() const { return geometry_; }
  const device::Ledger& ledger() const { return ledger_; }
  device::Queue& queue() { return queue_; }
  int64_t arena_peak() const { return arena_->peak(); }
  device::View owned_weights(int unit) const { return weights_->owned(unit); }
  device::View owned_gradient(int unit) const { return gradients_->owned(unit); }
  base::Stream draws(int64_t step) const { return draws_of_step(options_.seed, step); }
  // fp16's loss scale, for checkpoints: all zero without.
  optim::Engine::ScaleState scale_state() { return optimizer_->scale_state(); }
  void set_scale_state(const optim::Engine::ScaleState& state) { optimizer_->set_scale_state(state); }
  bool scales_loss() const { return options_.loss_scale.has_value(); }
  // Parameters and optimizer state, for checkpoints; they lie in memory of queue().
  std::vector<shard::TensorSlice> state();

 private:
  void pass(shard::WeightStore& weights, shard::GradientStore& gradients, device::Queue& queue, device::Arena& arena,
            int64_t step, int64_t m, models::Sums* sums, int64_t shape_set = 0);
  const StepReport& run_passes(int64_t step, const Feed& feed, int64_t passes);
  int64_t measure_arena();
  void add_sums(std::vector<models::Sums>& sums);

  EngineOptions options_;
  comm::Mesh& mesh_;
  device::Queue queue_;
  device::Ledger ledger_;
  Geometry geometry_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<shard::Layout> layout_;
  std::unique_ptr<shard::WeightStore> weights_;
  std::unique_ptr<shard::GradientStore> gradients_;
  std::unique_ptr<optim::Engine> optimizer_;
  std::unique_ptr<device::Arena> arena_;
  std::vector<device::Buffer> input_buffers_;
  std::vector<device::HostBuffer> host_buffers_;  // where those are not memory of the host
  models::Inputs inputs_;
  std::vector<models::Sums> sums_;        // by pass
  std::vector<models::Sums> slice_sums_;  // of the pass under way
  std::vector<optim::OwnedUnit> owned_;
  StepReport report_;
};

}  // namespace train
