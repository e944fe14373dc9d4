// SPDX-License-Identifier: Apache-2.0
// A masked autoencoder (arXiv 2111.06377): a ViT encodes some patches of an image, and a decoder
// predicts the pixels of the others (mae.md).
#pragma once

#include "models/embedder.hpp"
#include "models/masked/pixel_decoder.hpp"
#include "models/trunks/pooled_trunk.hpp"

namespace models {

class Mae : public Model, public Embedder {
 public:
  // The state of one pass.
  struct State {
    std::unique_ptr<Trunk::Pass> encoder;
    PixelDecoder::Pass decoder = {};
    std::vector<float> scale = {};  // of normalised pixels
    View scale_of_pixels{};
    device::Arena::Mark start{};
  };

  Mae(const MaeOptions& options, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  TrunkWeights trunk_weights() const override;
  std::map<std::string, FeatureSpec> features() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  int64_t sum_columns() const override { return 1; }
  std::vector<Measure> measures() const override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::vector<Tap> taps() const override;
  std::string feature_tap() const override { return trunk_.feature_tap(); }
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;

  // ---- parts of passes
  std::vector<InputSpec> inputs() const;
  // Draws the patches that examples keep, [examples, kept], ascending in each: a pure function of
  // stream and position.
  std::vector<int32_t> draw(int64_t examples, int64_t first_position, base::Stream stream) const;
  // Makes the inputs that are no fields from such patches.
  void prepare(std::span<const int32_t> kept, const Inputs& into) const;
  State make_state() const;
  // Copies tables of the host to where ops read them, until the arena is popped.
  void place(nn::Context& ctx, const Inputs& inputs, State& state) const;
  // Predict the pixels of masked patches, and find their targets: f32 [examples, masked, pixels].
  void predict(nn::Context& ctx, const Inputs& inputs, View pixels, State& state) const;
  void make_targets(nn::Context& ctx, const Inputs& inputs, View targets, State& state) const;
  // Computes all gradients from that of the predictions.
  void backward(nn::Context& ctx, View d_pixels, State& state) const;
  // Computes losses and gradients, and writes f64 [slices, 1] to sums.
  void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums,
                        State& state) const;
  const MaeOptions& options() const { return options_; }

 private:
  const Vit& vit() const { return dynamic_cast<const Vit&>(trunk_.trunk()); }
  ImageGroup images(View of = {}) const {
    return {.images = of, .height = options_.height(), .width = options_.width()};
  }
  InputSpec image_input() const;

  MaeOptions options_;
  ParameterList list_;
  PooledTrunk trunk_;
  PixelDecoder decoder_;
  kernels::PixelRange range_{};
  bool bytes_ = false;  // images come as bytes
};

}  // namespace models
