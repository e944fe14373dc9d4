// SPDX-License-Identifier: Apache-2.0
// Runs one step on this rank: forward and backward of each micro-batch, reduction, norms, update.
// It knows model, stores and optimizer, but no data set, no file and no clock other than its own
// stopwatch. The plan back end runs the same code and only counts.
//
// On a GPU the host only queues the step and continues. The GPU decides whether the step is
// applied, and the host reads the report one step later. Inputs are copied to the GPU while it runs
// the pass before.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/per_step.hpp"
#include "device/transfers.hpp"
#include "models/model.hpp"
#include "optim/ema.hpp"
#include "optim/noise.hpp"
#include "optim/optimizer.hpp"
#include "step/geometry.hpp"
#include "step/pass_inputs.hpp"
#include "step/probe.hpp"
#include "step/step_report.hpp"
#include "step/step_sums.hpp"
#include "step/typed_weights.hpp"

namespace step {

// Makes a forward pass that the run uses beside training; returns null if the model lacks the
// capability.
using MakePass = std::function<std::unique_ptr<models::ForwardPass>(const models::Model&)>;

// A pass beside training, and the type of its products.
struct SidePass {
  template <class Make>
  SidePass(Make make_pass, std::optional<device::DType> type = {}, bool with_average = false)
      : make(std::move(make_pass)), operands(type), on_average(with_average) {}

  MakePass make;
  // Type of the operands of its products, which are never rounded to tf32; nothing: as in training.
  std::optional<device::DType> operands;
  bool on_average;  // it also runs on the average of the weights
};

// A pass of an engine beside training, by its position in EngineOptions::passes.
struct PassId {
  size_t position = 0;
};

// The settings of an engine. There are many members because the engine knows no deck, and each
// setting that a step depends on is one.
struct EngineOptions {
  // false: the engine has weights and runs forward passes alone. It has no gradients, no optimizer
  // and no average, `micro_batch` is the batch of a pass, and `resolve` is not called.
  bool trains = true;
  std::shared_ptr<const models::Model> model;
  std::vector<shard::InitRule> init;  // initial distributions by rule
  shard::ShardingOptions sharding;
  int64_t bucket_bytes = 0;  // of small units whose gradients are exchanged together
  // true: gradients that accumulate on their rank are exchanged when the last pass is over
  bool reduces_after = false;
  DeterminismOptions determinism;
  optim::OptimizerOptions optimizer;
  std::vector<std::string> groups;  // regular expressions; the norms of each group are reported
  int64_t global_batch = 0, micro_batch = 0;
  int64_t total_steps = 0;  // of the run, for schedules of losses and teachers; 0: not known
  int64_t seed = 0;
  int threads = 1;
  device::DType operands = device::DType::f32;  // type of the operands of products
  std::optional<optim::LossScaleOptions> loss_scale;
  std::optional<optim::EmaRule> ema;
  std::optional<optim::NoiseOptions> noise;
  bool tf32 = false;                          // round f32 operands to tf32, on GPUs
  device::Kind paper_of = device::Kind::cpu;  // kind plan: the device that is planned for
  // Called on GPUs once all shapes of products are known (kernels/gemm_search.hpp), and before
  // activations have memory.
  std::function<void(device::Queue&)> choose_products;
  std::vector<SidePass> passes;  // entries of equal name and type share one pass
  // on GPUs: largest number of CUDA graphs of passes; 0: passes run without graphs
  int64_t graphs = 0;
  // True makes it an error if the host waits for its GPU within a step, from the third step on.
  bool forbid_waits = false;
  // Fills in the settings of each parameter and the schedules they name, once the model's
  // parameters are known.
  std::function<void(const std::vector<shard::Parameter>&, std::vector<optim::ParameterPolicy>&,
                     std::vector<optim::Schedule>&)>
      resolve;
};

// The reason why no graph repeats a pass at level "mesh".
inline constexpr char kTreeInPasses[] =
    "determinism.level = \"mesh\" exchanges and adds gradients within passes";

// Returns the random stream for a step's decisions about its examples.
inline base::Stream draws_of_step(int64_t seed, int64_t step) {
  return base::Stream(uint64_t(seed), "draws").sub(uint64_t(step));
}

// It has many members because each part of a step has one.
class Engine {
 public:
  // `kind` is cpu, cuda (the GPU in use) or plan (then the mesh is a plan mesh as well).
  Engine(const EngineOptions& options, comm::Mesh& mesh, device::Kind kind);
  ~Engine();

  // Returns the examples of this rank's pass m. The engine owns a batch as long as passes read it.
  using Source = std::function<models::HostBatch(int64_t m)>;
  // Makes the inputs that are no fields of the batch, instead of the pass. Only tests use it.
  using Prepare = std::function<void(const models::HostBatch& batch, const models::Inputs& into)>;
  // Prepares and runs the passes of a step; without a source the inputs stay as they are.
  void submit(int64_t step, const Source& source, const Prepare& prepare = {});
  // Returns the report of a submitted step. Call it before submitting two more steps: only two
  // reports are kept. On a GPU the host waits for it.
  const StepReport& report(int64_t step);
  const StepReport& step(int64_t step, const Source& source, const Prepare& prepare = {}) {
    submit(step, source, prepare);
    return report(step);
  }
  // Lets a probe look into all later steps, until null is given. On a GPU these steps wait for the
  // probe, and no graph repeats their passes.
  void set_probe(Probe* probe) { probe_ = probe; }
  // True if it saves time to submit a step before asking for the previous step's report.
  bool runs_ahead() const { return queue_.kind() == device::Kind::cuda; }
  // Plans a step with fewer passes. From the second pass on, each pass adds equal amounts to every
  // count of the step.
  void plan_step(int64_t passes) { run_passes(1, {}, {}, passes); }
  // Returns for the log what CUDA graphs repeat, or why they repeat nothing; "" without
  // options.graphs.
  std::string graphs_text() const;
  // Returns null if passes run without graphs.
  const device::Graphs* graphs() const { return graphs_.get(); }
  // Brings every copy of the weights up to date. Call it after initialise, and after a restore has
  // filled state(). After initialise the average ([ema]) and a teacher begin from the initial
  // weights.
  void initialise();
  void publish();

  // Returns a pass of options.passes as the type it was made with. The model must have made it.
  template <class Pass = models::ForwardPass>
  Pass& pass(PassId id) const {
    return dynamic_cast<Pass&>(*passes_.forward[number_of(id)].pass);
  }
  // Runs a pass of options.passes on a batch of geometry().micro_batch examples, which must live
  // until this returns.
  using Run = std::function<void(nn::Context& ctx, const models::Inputs& inputs)>;
  void forward(PassId id, const models::HostBatch& batch, const Run& run, Weights on = Weights::raw,
               const Prepare& prepare = {});
  // For tests: a context for forward passes, and the inputs of the training pass that was begun
  // last.
  nn::Context forward_context(Weights on = Weights::raw);
  const models::Inputs& inputs() const { return passes_.inputs->of(0); }

  const models::Model& model() const { return *options_.model; }
  const models::TrainPass& train_pass() const { return *passes_.train; }
  const shard::Layout& layout() const { return *stores_.layout; }
  const Geometry& geometry() const { return geometry_; }
  const std::vector<models::Measure>& measures() const { return sums_->measures(); }
  const device::Ledger& ledger() const { return ledger_; }
  // For memory outside the engine that counts as the job's.
  device::Ledger& ledger() { return ledger_; }
  device::Queue& queue() { return queue_; }
  int64_t arena_peak() const { return arena_->peak(); }
  device::View owned_weights(int unit) const { return stores_.weights->owned(unit); }
  device::View owned_gradient(int unit) const { return stores_.gradients->owned(unit); }
  base::Stream draws(int64_t step) const { return draws_of_step(options_.seed, step); }
  // fp16's loss scale, for checkpoints; all zero in other precisions.
  optim::Optimizer::ScaleState scale_state() { return update_.optimizer->scale_state(); }
  void set_scale_state(const optim::Optimizer::ScaleState& state) {
    update_.optimizer->set_scale_state(state);
  }
  bool scales_loss() const { return options_.loss_scale.has_value(); }
  // Returns parameters and optimizer state for checkpoints, in the memory of queue(). An engine
  // that does not train has parameters alone.
  std::vector<shard::TensorSlice> state();

 private:
  // The objects that a training pass works with: the engine's own, or those of a planned pass.
  struct Workplace {
    shard::WeightStore& weights;
    shard::GradientStore& gradients;
    shard::StateStore& states;
    nn::BatchGroup& group;
    const nn::Teacher* teacher;
    device::Queue& queue;
    device::Arena& arena;
  };
  nn::Context context(const Workplace& at, int64_t step, int64_t m, int64_t shape_set = 0);
  // True if the passes of a step first embed, because the loss needs all of them.
  bool two_phases() const {
    return passes_.coupled && passes_.coupled->two_phases() && geometry_.accumulation > 1;
  }
  // Runs the passes of a step. `with_inputs(m, again, work)` calls work with the inputs of pass m
  // in place; again: as the first phase has left them.
  template <class WithInputs>
  void run_phases(const Workplace& at, int64_t step, int64_t passes, int64_t shape_set,
                  const WithInputs& with_inputs);
  void plan_training(device::Queue& queue, device::Arena& arena, const shard::Fabric& fabric,
                     shard::WeightStore& weights);
  void make_teacher(const shard::Fabric& fabric);
  void run_passes(int64_t step, const Source& source, const Prepare& prepare, int64_t passes);
  std::string graphs_problem() const;
  int64_t measure_arena();

  // The type of the operands of products, and whether GPUs round f32 operands to tf32.
  struct Products {
    device::DType operands;
    bool tf32;
    bool operator==(const Products&) const = default;
  };
  struct Forward {
    std::unique_ptr<models::ForwardPass> pass;
    Products products;
    bool on_average;
  };
  Products products_of(std::optional<device::DType> operands) const {
    return operands ? Products{*operands, false} : Products{options_.operands, options_.tf32};
  }
  void make_passes();
  size_t number_of(PassId id) const;  // its position in Passes::forward
  void make_typed_weights(const shard::Fabric& fabric);
  void weights_changed();
  void plan_forward(nn::Context ctx, const shard::Fabric& fabric, size_t number);
  struct Passes {
    std::unique_ptr<models::TrainPass> train;
    models::CoupledPass* coupled = nullptr;  // the same object, if its loss couples passes
    std::vector<Forward> forward;
    // Positions in `forward` by positions in options.passes; nothing: the model cannot make it.
    std::vector<std::optional<size_t>> numbers;
    std::unique_ptr<PassInputs> inputs;
  };
  // Parameters as this rank holds them, and what is exchanged for them.
  struct Stores {
    std::unique_ptr<shard::Layout> layout;
    std::unique_ptr<shard::WeightStore> weights;
    std::map<device::DType, TypedWeights> typed;  // of passes of other types
    std::unique_ptr<shard::GradientStore> gradients;
    std::unique_ptr<shard::StateStore> states;
    std::unique_ptr<nn::BatchGroup> group;
    optim::SecondWeights::Options teacher_options;  // with a teacher
    std::unique_ptr<optim::SecondWeights> teacher;  // null: the model has none
  };
  struct Update {
    std::unique_ptr<optim::Optimizer> optimizer;
    std::unique_ptr<optim::SecondWeights> ema;
    std::unique_ptr<optim::Noise> noise;
    bool followers_start = false;  // average and teacher, at the next publish
    std::vector<optim::OwnedUnit> owned;
  };
  struct Tally {
    double data_s = 0, comm_s = 0;  // since the last report
    int64_t submitted = 0;          // steps so far
  };

  EngineOptions options_;
  comm::Mesh& mesh_;
  device::Queue queue_;
  std::unique_ptr<device::Graphs> graphs_;
  device::Ledger ledger_;
  Geometry geometry_;
  Stores stores_;
  Update update_;
  std::unique_ptr<device::Arena> arena_;
  Passes passes_;
  std::unique_ptr<StepSums> sums_;
  base::PerStep<StepReport> reports_;
  Tally tally_;
  Probe* probe_ = nullptr;
};

}  // namespace step
