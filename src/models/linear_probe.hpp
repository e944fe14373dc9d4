// SPDX-License-Identifier: Apache-2.0
// Linear probes (ssl.md 8): classifiers on the values of a trunk at several taps. The trunk is
// frozen, and its batch norms use running statistics in training, too. Each probe has a pool, a
// head and measures of its own; the loss is the sum of theirs.
//
// Parameters: the trunk's own, and "head/...", "head1/...", ... in the order of the probes.
#pragma once

#include <functional>

#include "kernels/window.hpp"
#include "models/embedder.hpp"
#include "models/linear_probe_options.hpp"
#include "models/probe_classifier.hpp"

namespace models {

class LinearProbeModel : public Model, public Embedder, public ProbeClassifier {
 public:
  // Error(Exit::config) for a tap that does not exist, a pool that does not fit, and a head that
  // has not one score for each class.
  LinearProbeModel(const LinearProbeOptions& options, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  std::vector<std::string> patch_tables() const override { return trunk_->patch_tables(); }
  std::map<std::string, FeatureSpec> features() const override;
  double uniform_loss() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  int64_t sum_columns() const override { return 1 + int64_t(probes_.size()) * columns_of_probe(); }
  std::vector<Measure> measures() const override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::vector<Tap> taps() const override;
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  std::string feature_tap() const override { return trunk_->feature_tap(); }
  std::vector<std::string> probe_names() const override;
  std::unique_ptr<ProbesPass> make_probes_pass() const override;
  std::unique_ptr<ClassifyPass> make_classify_pass(const std::string& probe) const override;
  std::unique_ptr<ClassScorePass> make_class_score_pass(const std::string& probe) const override;
  std::unique_ptr<LogitsPass> make_logits_pass(const std::string& probe) const override;
  int64_t num_classes() const override { return options_.num_classes; }
  std::string changing_arguments() const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;
  int64_t train_flops() const override;

  // ---- parts of passes
  struct State {
    std::unique_ptr<Trunk::Pass> trunk;
    std::vector<size_t> probes;                      // those that run
    std::vector<std::unique_ptr<Head::Pass>> heads;  // theirs
  };
  // A state of all probes, or of the one of that name.
  State make_state(const std::string& name = "") const;
  std::vector<InputSpec> inputs() const;
  void take_images(const HostBatch& batch, const Inputs& into) const;
  // Fills the input buffers. Throws Error(Exit::data) for a label that is no class.
  void prepare(const HostBatch& batch, const Inputs& into) const;
  void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums,
                        State& state) const;
  // Runs the probes of `state` without a backward pass, one after the other, and calls `use`, if
  // there is one, with the number of each and its scores f32 [batch, classes]. These are part of
  // `scores` f32 [probes, batch, classes] or, if it is none, lost with the call.
  using UseScores = std::function<void(int64_t probe, View logits)>;
  void score(nn::Context& ctx, View image, State& state, View scores, const UseScores& use) const;
  // Writes loss f32 [probes, batch] and ranks i32 [probes, batch] of a forward pass, and on request
  // the scores f32 [probes, batch, classes].
  void classify(nn::Context& ctx, const Inputs& inputs, View loss, View ranks, State& state,
                View scores = {}) const;

 private:
  struct Probe {
    std::string name;
    std::string tap;
    int64_t pool = 0, pool_stride = 1, pool_padding = 0;
    int64_t in = 0;  // values that the head reads
    std::unique_ptr<Head> head;
  };
  Probe make_probe(const ProbeOptions& options, const std::vector<Tap>& taps);
  static kernels::Window probe_window(const Probe& probe, int64_t images, int64_t height,
                                      int64_t width);
  static nn::Context frozen(const nn::Context& ctx);
  int64_t columns_of_probe() const { return 1 + int64_t(options_.top.size()); }
  ImageGroup images(View of = {}) const;
  // Runs the trunk, and returns what each head reads, f32 [batch, in], as temporaries.
  std::vector<View> read_taps(nn::Context& ctx, View image, State& state) const;
  void read_tap(nn::Context& ctx, const Trunk::TapValues& values, const State& state,
                const std::vector<View>& into) const;
  // hits: f32 [counts of `top`, batch]
  void count_hits(nn::Context& ctx, View ranks, View hits) const;
  // Places the trunk's tables.
  void place(nn::Context& ctx, State& state) const;

  LinearProbeOptions options_;
  ParameterList list_;
  std::unique_ptr<Trunk> trunk_;
  std::vector<Probe> probes_;
  bool bytes_ = false;  // images come as bytes
};

}  // namespace models
