// SPDX-License-Identifier: Apache-2.0
// The model of classes: a trunk, and heads over classes. `classifier` trains the trunk and one
// linear head on its features, "head/kernel" and "head/bias". `linear_probe` trains probes on taps
// of a frozen trunk (ssl.md 8), whose batch norms use running statistics in training, too. Their
// heads are "head/...", "head1/...", ..., and the loss is the sum of the probes' losses.
#pragma once

#include "models/classes/class_options.hpp"
#include "models/classes/class_ranker.hpp"
#include "models/embedder.hpp"
#include "models/trunks/pooled_trunk.hpp"

namespace models {

class ClassModel : public Model, public Embedder, public ClassRanker {
 public:
  // Error(Exit::config) as make_probe.
  ClassModel(const ClassOptions& options, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  TrunkWeights trunk_weights() const override { return encoder_.trunk().weights(); }
  std::map<std::string, FeatureSpec> features() const override;
  double uniform_loss() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  int64_t sum_columns() const override {
    return objective_.counts_labels() ? known_column() + 1 : first_column(probes_.size());
  }
  std::vector<Measure> measures() const override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::vector<Tap> taps() const override;
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  std::string feature_tap() const override { return encoder_.feature_tap(); }
  std::vector<std::string> head_names() const override;
  ClassLogits logits(const std::vector<std::string>& heads) const override;
  int64_t num_classes() const override { return options_.num_classes; }
  std::string changing_arguments() const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;
  int64_t train_flops() const override;

  // ---- parts of passes
  struct State {
    PooledTrunk::Pass encoder;
    std::vector<size_t> probes;                      // probes that run
    std::vector<std::unique_ptr<Head::Pass>> heads;  // passes of their heads
    std::vector<View> values;                        // what their heads read
  };
  // Makes a state of the named probes, in the order of the names; no names: of all probes.
  State make_state(const std::vector<std::string>& names = {}) const;
  std::vector<InputSpec> inputs() const;  // of training
  // Makes the inputs of training that are no fields. Error(Exit::data) for a label that is not a
  // class.
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const;
  void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums,
                        State& state) const;

 private:
  // The columns of the step's sums are the loss, and from first_column(p) on the loss of probe p
  // and its hits for each K of `top`. Checkpoints hold sums of an epoch by column, so a classifier
  // keeps its hits in column 3 and the number of known labels in column 5. Others hold 0.
  int64_t columns_of_probe() const { return 1 + int64_t(options_.top.size()); }
  int64_t first_column(size_t p) const {
    return (options_.trains_trunk() ? 2 : 1) + int64_t(p) * columns_of_probe();
  }
  static constexpr int64_t known_column() { return 5; }

  InputSpec image_input() const;
  ImageGroup images(View of = {}) const;
  nn::Context of_trunk(const nn::Context& ctx) const;
  // Places the trunk's tables.
  void place(nn::Context& ctx, State& state) const;
  // Runs the trunk, and fills state.values.
  void read_trunk(nn::Context& ctx, View image, State& state) const;
  // Trains a probe. d: the gradient of what its head reads, or none. Writes the probe's rows of
  // `values`, f32 [sum_columns(), ctx.batch], and adds its loss to the first row.
  void train_probe(nn::Context& ctx, size_t p, const Inputs& inputs, int64_t global_batch, View d,
                   View values, State& state) const;
  // Runs the probes of `state` (ClassLogits).
  void score(nn::Context& ctx, View image, View kept, State& state,
             const ClassLogits::Use& use) const;

  ClassOptions options_;
  Mixing mixing_;
  ClassObjective objective_;
  ParameterList list_;
  PooledTrunk encoder_;
  std::vector<Probe> probes_;
  bool bytes_ = false;  // images come as bytes
  kernels::PixelRange range_{};
};

}  // namespace models
