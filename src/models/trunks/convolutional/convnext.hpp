// SPDX-License-Identifier: Apache-2.0
// A ConvNeXt (arXiv 2201.03545): the trunk whose tokens are the positions of its last map, before
// the final norm, which belongs to the pooling. Parameters have torchvision's names and shapes
// below "trunk/", for example "trunk/features.1.0.block.0.weight".
//
// The stream of maps between layers is f32. Outputs of norms and of the blocks' MLPs have the
// activations' type. Convolutions have biases, and write f32, because a norm or the stream follows.
#pragma once

#include "models/trunks/convolutional/conv_trunk.hpp"

namespace models {

struct ConvnextConfig {
  std::vector<int64_t> depths{3, 3, 9, 3};         // blocks of each stage
  std::vector<int64_t> widths{96, 192, 384, 768};  // channels of each stage
  double layer_scale = 1e-6;                       // initial value
  double drop_path = 0;  // probability that the last block's branch is dropped for an image
};

// Returns what a ConvNeXt declares about its tensors.
TrunkWeights convnext_weights();

// ConvnextStem and ConvnextLayer have the functions that ConvTrunk requires.
struct ConvnextStem {
  struct Saved {
    View c;  // the convolution's output
    nn::LayerNorm::Saved norm;
  };
  using Kept = ConvKept<Saved>;
  nn::Convolution convolution;
  nn::LayerNorm norm;

  int64_t channels() const { return convolution.out; }
  nn::ImageSize output_size(const nn::ImageSize& x) const { return convolution.output_size(x); }
  int64_t flops(const nn::ImageSize& x) const { return convolution.shape(1, x).flops(); }
  void make_saved(nn::Context&, Kept&) const {}
  void forward(nn::Context& ctx, Kept& kept, bool save, nn::BatchNormCall call,
               const MapReader& read) const;
  void again(nn::Context& ctx, Kept& kept) const { run(ctx, kept, false, {}); }
  void backward(nn::Context& ctx, std::vector<Kept>& all,
                std::vector<MapGradient>& gradients) const;

 private:
  // y: none if only what backward reads is computed.
  void run(nn::Context& ctx, Kept& kept, bool save, View y) const;
};

// A block, or the downsampling before a stage: a norm, then a convolution.
struct ConvnextLayer {
  struct Saved {
    View c, n;  // input of a block's norm; the norm's output
    nn::LayerNorm::Saved norm;
    View before, after;  // the hidden layer of the MLP, before and after GELU
    View branch;         // the MLP's output
    View scale;          // a copy of layer scale, for output_again
    View factor;         // f32 [images]: see place(); none: nothing is dropped
  };
  using Kept = ConvKept<Saved>;
  bool downsamples = false;
  nn::Convolution convolution;
  nn::LayerNorm norm;
  // of a block
  nn::Linear hidden, output;
  int layer_scale = -1;
  float drop_path = 0;
  int number = 0;  // of the block: chooses the draws
  Recompute recompute = Recompute::none;

  static device::DType map_type(const nn::Context&) { return device::DType::f32; }
  int64_t channels() const { return convolution.out; }
  nn::ImageSize output_size(const nn::ImageSize& x) const { return convolution.output_size(x); }
  int64_t flops(const nn::ImageSize& x) const {
    return convolution.shape(1, x).flops() +
           (downsamples ? 0 : 4 * x.pixels() * hidden.in * hidden.out);
  }
  // Draws the images of group `group` whose branch is dropped, by their number in the global batch.
  void place(nn::Context& ctx, int64_t group, Kept& kept) const;
  void make_saved(nn::Context&, Kept&) const {}
  void make_output_saved(nn::Context& ctx, Kept& kept) const;
  void forward(nn::Context& ctx, Kept& kept, bool save, nn::BatchNormCall call,
               const MapReader& read) const;
  void output_again(nn::Context& ctx, Kept& kept) const;
  void again(nn::Context& ctx, Kept& kept) const { run(ctx, kept, false, false); }
  void backward(nn::Context& ctx, std::vector<Kept>& all,
                std::vector<MapGradient>& gradients) const;

 private:
  void run(nn::Context& ctx, Kept& kept, bool save, bool with_output) const;
  void make_hidden(nn::Context& ctx, Kept& kept, bool save) const;
  void make_hidden_again(nn::Context& ctx, Kept& kept) const;
  void scale_branch(nn::Context& ctx, const Kept& kept, View scale) const;
  void backward_scale(nn::Context& ctx, const std::vector<Kept>& all,
                      const std::vector<MapGradient>& gradients, std::vector<View>& d) const;
  void backward_mlp(nn::Context& ctx, std::vector<Kept>& all, const std::vector<View>& d_branch,
                    const std::vector<View>& dn) const;
  void backward_downsampling(nn::Context& ctx, const std::vector<Kept>& all,
                             std::vector<MapGradient>& gradients) const;
};

class ConvnextTrunk : public ConvTrunk<ConvnextStem, ConvnextLayer> {
 public:
  ConvnextTrunk(const ConvnextConfig& config, Recompute recompute, ParameterList& list);

  std::vector<Tap> taps(int64_t height, int64_t width) const override;
  std::vector<std::string> pooled_taps() const override { return {"pre_logits"}; }
  TrunkWeights weights() const override { return convnext_weights(); }
};

// Keys of trunk.kind = "convnext".
struct ConvnextTrunkOptions : TrunkKeys {
  ConvnextConfig config;
  void bind(config::Table& t) override;
  std::string image_problem(int64_t height, int64_t width) const override;
  std::unique_ptr<Trunk> make(int64_t height, int64_t width, Recompute recompute,
                              ParameterList& list) const override;
  PoolingConfig pooling() const override {
    return {.pool = Pool::grid, .norm = "trunk/classifier.0"};
  }
};

}  // namespace models
