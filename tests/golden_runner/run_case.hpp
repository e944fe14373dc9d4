// SPDX-License-Identifier: Apache-2.0
// Runs one case through the real engine and compares the results with the recorded ones.
#pragma once

#include "case_file.hpp"
#include "compare.hpp"
#include "host/compute.hpp"
#include "models/captions/cappa.hpp"
#include "step/engine.hpp"
#include "translate.hpp"

namespace golden {

// Forms the logits of every position, which no pass of the product does.
class LogitsPass : public models::ForwardPass {
 public:
  explicit LogitsPass(const models::Cappa& model) : model_(model) {}
  std::string name() const override { return "logits"; }
  std::vector<models::InputSpec> inputs() const override { return model_.inputs(); }
  void plan(nn::Context& ctx, const models::Inputs& inputs) override {
    const models::CappaOptions& o = model_.options();
    device::Arena::Scope scope(ctx.arena);
    run(ctx, inputs, ctx.arena.temporary(ctx.batch * o.length() * o.vocab_size));
  }
  void run(nn::Context& ctx, const models::Inputs& inputs, device::View out) {
    model_.logits(ctx, inputs, out, state_);
  }

 private:
  const models::Cappa& model_;
  models::Cappa::State state_;
};

// The encoder's features that are compared: forward/TAP.
inline const std::vector<std::string> kTaps = {"pre_logits", "encoded"};
// The passes of an engine that runs a whole case.
inline constexpr step::PassId kLogits{0}, kScore{1}, kFeatures{2};

// Settings of the command line, equal for all files.
struct Settings {
  std::string strategy = "sharded";
  step::DeterminismOptions determinism;
  int64_t micro_batch = 0;  // 0: all examples of a rank at once
  std::string recompute = "none";
  int threads = 1;
  device::Kind device = device::Kind::cpu;
  host::Compute compute = host::Compute::f32;
};

// A case with all data that is read before the ranks exchange anything.
class Runner {
 public:
  // The whole case runs, or predictions run with its parameters and images alone.
  enum class Use { whole_case, predictions };
  Runner(const CaseFile& file, const Settings& settings, comm::Mesh& mesh, Use use);
  // Collective.
  void run(Report& report);
  // Compares results that evaluators have with the parameters and images of this case: the groups
  // score, perplexity, enc_rep and decode of `recorded`, as far as it has them. Collective.
  void run_predictions(const CaseFile& recorded, Report& report) const;

 private:
  // Arrays of one step; `masks` and `ids` are empty if the file has none.
  struct Batch {
    std::vector<float> image, masks;
    std::vector<int32_t> labels, ids;
    std::vector<uint8_t> parallel;
  };
  step::EngineOptions engine_options() const;
  models::MemoryOptions memory() const {
    return {base::value_of(models::kRecomputeNames, settings_.recompute)};
  }
  void read_batch();
  void check_parameters() const;
  // Returns the examples [first, first + n) of a step, as the trainer passes them to the model.
  models::HostBatch host_batch(int64_t step, int64_t first, int64_t n, bool masks) const;
  models::Cappa::Draws draws(const models::HostBatch& batch) const;
  bool has_draws() const { return !batch_.ids.empty(); }
  // The batches of a step, and its recorded draws.
  step::Engine::Source source(int64_t step, bool masks = true) const;
  step::Engine::Prepare preparation(step::Engine& engine, int64_t step) const;

  // Returns the tolerance of a set of a model case: from the file, or from its precision.
  double tolerance(const std::string& set) const;
  void load_parameters(step::Engine& engine) const;
  void check_draws(step::Engine& engine, Report& report) const;
  // Returns the logits of one micro-batch: [examples, length, vocabulary].
  std::vector<float> logits(step::Engine& engine, const models::HostBatch& batch,
                            const step::Engine::Prepare& prepare) const;
  void run_forward(step::Engine& engine, Report& report) const;
  void run_evaluation(step::Engine& engine, Report& report) const;
  void run_features(step::Engine& engine, Report& report) const;
  void compare_gradients(step::Engine& engine, Report& report) const;
  void run_model_case(step::Engine& engine, Report& report) const;

  // ---- predictions (predict_case.cpp)
  double tolerance(const CaseFile& recorded, const std::string& set) const;
  // Completes values [batch, columns] on every rank. Each rank has the rows of its own examples.
  // The last rows may be padding.
  void share(std::vector<double>& values) const;
  void compare_scores(step::Engine& engine, const CaseFile& recorded, Report& report) const;
  void compare_perplexity(step::Engine& engine, const CaseFile& recorded, bool masks,
                          Report& report) const;
  void compare_representations(step::Engine& engine, const CaseFile& recorded,
                               Report& report) const;

  void run_training_case(step::Engine& engine, Report& report) const;
  void compare_steps(const std::vector<step::StepReport>& steps, const shard::Layout& layout,
                     Report& report) const;
  void compare_norms(const std::vector<step::StepReport>& steps, const shard::Layout& layout,
                     Report& report) const;
  void compare_state(step::Engine& engine, Report& report) const;
  struct StateSet {
    shard::TensorSlice slice;
    std::string set, quantity;
  };
  void compare_slice(const StateSet& state, double wide, device::Queue& queue,
                     Report& report) const;
  std::map<std::string, double> wide_tolerances(const std::vector<StateSet>& all) const;

  const CaseFile& file_;
  Settings settings_;
  comm::Mesh& mesh_;
  Use use_;
  Case case_;
  int64_t recorded_;  // examples of a batch in the file; predictions may pad it
  step::Geometry geometry_;
  Batch batch_;
};

}  // namespace golden
