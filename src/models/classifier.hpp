// SPDX-License-Identifier: Apache-2.0
// An image classifier: a trunk, and a linear head over classes, "head/kernel" and "head/bias".
#pragma once

#include "models/classifier_options.hpp"
#include "models/classify_pass.hpp"
#include "models/embedder.hpp"

namespace models {

class ClassifierModel : public Model, public Classifier, public Embedder {
 public:
  ClassifierModel(const ClassifierOptions& options, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  std::vector<std::string> patch_tables() const override;
  std::map<std::string, FeatureSpec> features() const override;
  double uniform_loss() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  int64_t sum_columns() const override;
  std::vector<Measure> measures() const override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::unique_ptr<ClassifyPass> make_classify_pass() const override;
  std::unique_ptr<ClassScorePass> make_class_score_pass() const override;
  std::unique_ptr<LogitsPass> make_logits_pass() const override;
  std::vector<Tap> taps() const override;
  std::string feature_tap() const override { return trunk_->feature_tap(); }
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  int64_t num_classes() const override { return options_.num_classes; }
  std::string changing_arguments() const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;

  // ---- parts of passes
  // The state of one pass.
  struct State {
    std::unique_ptr<Trunk::Pass> trunk;
    View first, ones;  // inputs of op loss_sums: index of each example's loss, its weight 1
  };
  bool exclusive() const { return options_.loss == kernels::ClassLoss::softmax; }
  bool compares_values() const { return options_.compares_values(); }
  std::vector<InputSpec> inputs(bool train) const;
  // Fills the buffer of images.
  void take_images(const HostBatch& batch, const Inputs& into) const;
  // Fills the input buffers. Throws Error(Exit::data) for a label that is no class.
  void prepare(const HostBatch& batch, bool train, base::Stream stream, const Inputs& into) const;
  void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums,
                        State& state) const;
  // Writes loss f32 [batch] and ranks i32 [batch] of a forward pass, and logits [batch, classes]
  // unless none.
  void classify(nn::Context& ctx, const Inputs& inputs, View loss, View ranks, State& state,
                View logits = {}) const;
  // Writes the logits f32 [batch, classes] of a forward pass.
  void compute_logits(nn::Context& ctx, View image, View logits, State& state) const;

 private:
  void place(nn::Context& ctx, State& state) const;
  View embed(nn::Context& ctx, View image, State& state) const;
  int64_t pixels() const { return options_.image_size * options_.image_size * 3; }
  ImageGroup images(View view = {}) const {
    return {.images = view, .height = options_.image_size, .width = options_.image_size};
  }

  ClassifierOptions options_;
  Mixing mixing_;
  ClassObjective objective_;
  ParameterList list_;
  std::unique_ptr<Trunk> trunk_;
  int head_block_ = 0;
  nn::Linear head_;
  bool bytes_ = false;  // images come as bytes
  kernels::PixelRange range_{};
};

}  // namespace models
