// SPDX-License-Identifier: Apache-2.0
// An image classifier: a trunk, and a linear head over classes, "head/kernel" and "head/bias".
#pragma once

#include "models/classes/class_ranker.hpp"
#include "models/classes/classifier_options.hpp"
#include "models/embedder.hpp"
#include "models/trunks/pooled_trunk.hpp"

namespace models {

class ClassifierModel : public Model, public ClassRanker, public Embedder {
 public:
  ClassifierModel(const ClassifierOptions& options, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  TrunkWeights trunk_weights() const override { return encoder_.trunk().weights(); }
  std::map<std::string, FeatureSpec> features() const override;
  double uniform_loss() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  int64_t sum_columns() const override;
  std::vector<Measure> measures() const override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::unique_ptr<ClassPass> make_class_pass(const ClassRequest& request) const override;
  std::vector<Tap> taps() const override;
  std::string feature_tap() const override { return encoder_.feature_tap(); }
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  int64_t num_classes() const override { return options_.num_classes; }
  std::string changing_arguments() const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;

  // ---- parts of passes
  // The state of one pass.
  struct State {
    PooledTrunk::Pass encoder;
    View first, ones;  // inputs of op loss_sums: index of each example's loss, its weight 1
  };
  std::vector<InputSpec> inputs() const;  // of training
  // Fills the input buffers of training. Throws Error(Exit::data) for a label that is not a class.
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const;
  void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums,
                        State& state) const;

 private:
  // See ClassScorer.
  void score(nn::Context& ctx, View image, View kept, State& state,
             const ClassScorer::Use& use) const;
  InputSpec image_input() const;
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
  PooledTrunk encoder_;
  int head_block_ = 0;
  nn::Linear head_;
  bool bytes_ = false;  // images come as bytes
  kernels::PixelRange range_{};
};

}  // namespace models
