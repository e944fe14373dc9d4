// SPDX-License-Identifier: Apache-2.0
// A ResNet (ssl.md 1): the trunk whose tokens are the positions of its last map. Parameters have
// torchvision's names and shapes below "trunk/", for example "trunk/layer1.0.conv1.weight".
//
// Convolutions, and all activations between them, have the activations' type. Blocks save the
// outputs of convolutions. Backward computes again what norms and ReLUs made of them: the inputs of
// convolutions when it needs them, the outputs of blocks before their stage.
#pragma once

#include <array>
#include <optional>

#include "models/trunks/convolutional/conv_trunk.hpp"
#include "nn/image_norm.hpp"

namespace models {

// The initial values of convolutions: torch's default rule, which published self-supervised runs
// begin from, or torchvision's (ssl.md 1.5).
enum class ResnetInit { uniform, kaiming };

// The values that share mean and variance. batch: one channel of a group of examples; group: a
// group of channels of one image.
enum class ResnetNorm { batch, group };

// Returns what a ResNet declares about its tensors.
TrunkWeights resnet_weights();

struct ResnetConfig {
  std::array<int64_t, 4> blocks{3, 4, 6, 3};  // of each stage
  bool bottleneck = true;
  int64_t width = 64;  // channels of the stem
  int64_t groups = 1, width_per_group = 64;
  int64_t layer4_stride = 2;
  int64_t group_examples = 0;          // of batch norm (nn::BatchNorm)
  float eps = 1e-5f, momentum = 0.1f;  // likewise
  ResnetInit init = ResnetInit::uniform;
  bool zero_last_scale = false;  // the last scale of each block begins at 0
  ResnetNorm norm = ResnetNorm::batch;
  int64_t norm_groups = 32;  // of channels, of group norm
};

// A convolution and its norm.
struct ResnetUnit {
  nn::Convolution convolution;
  nn::ImageNorm norm;

  // The tensors that a unit keeps for its backward pass, for images of one size.
  struct Kept {
    View c;  // the convolution's output
    nn::ImageSize size;
    nn::ImageNorm::Saved statistics;
  };
  // Runs the convolution and measures its output, which is saved if `save`. Returns it.
  View run(nn::Context& ctx, View x, const nn::ImageSize& size, bool save, nn::BatchNormCall call,
           Kept& kept) const;
  // Repeats the convolution, whose output was not kept.
  void again(nn::Context& ctx, View x, const nn::ImageSize& size, Kept& kept) const;
  // Returns the norm and the ReLU of the output, in its place if `in_place`.
  View activated(nn::Context& ctx, const Kept& kept, bool in_place) const;
  int64_t flops(const nn::ImageSize& size) const { return convolution.shape(1, size).flops(); }
};

// ResnetStem and ResnetBlock have the functions that ConvTrunk requires.
struct ResnetStem {
  struct Saved {
    ResnetUnit::Kept unit;
    View place;  // of the maxima in their windows
  };
  using Kept = ConvKept<Saved>;
  ResnetUnit unit;

  int64_t channels() const { return unit.convolution.out; }
  nn::ImageSize output_size(const nn::ImageSize& images) const;
  int64_t flops(const nn::ImageSize& images) const { return unit.flops(images); }
  void make_saved(nn::Context& ctx, Kept& kept) const;
  void forward(nn::Context& ctx, Kept& kept, bool save, nn::BatchNormCall call,
               const MapReader& read) const;
  void again(nn::Context& ctx, Kept& kept) const {
    unit.again(ctx, kept.x, kept.size, kept.saved.unit);
  }
  void backward(nn::Context& ctx, std::vector<Kept>& all,
                std::vector<MapGradient>& gradients) const;

 private:
  kernels::Window window(int64_t images, const nn::ImageSize& size) const;
};

struct ResnetBlock {
  struct Saved {
    std::array<ResnetUnit::Kept, 3> units;
    ResnetUnit::Kept shortcut;
    // Norm values that output_again computes y from, if y is not kept.
    kernels::BatchNormValues sum_values, shortcut_values;
  };
  using Kept = ConvKept<Saved>;
  std::vector<ResnetUnit> units;       // two in a basic block, three in a bottleneck
  std::optional<ResnetUnit> shortcut;  // none: the input itself
  bool follows_stem = false;           // the stem takes its gradient in one part

  static device::DType map_type(const nn::Context& ctx) { return ctx.activation(); }
  int64_t channels() const { return units.back().convolution.out; }
  nn::ImageSize output_size(nn::ImageSize size) const;
  int64_t flops(nn::ImageSize size) const;
  void place(nn::Context&, int64_t, Kept&) const {}
  void make_saved(nn::Context& ctx, Kept& kept) const;
  void make_output_saved(nn::Context& ctx, Kept& kept) const;
  void forward(nn::Context& ctx, Kept& kept, bool save, nn::BatchNormCall call,
               const MapReader& read) const;
  void output_again(nn::Context& ctx, Kept& kept) const;
  void again(nn::Context& ctx, Kept& kept) const;
  void backward(nn::Context& ctx, std::vector<Kept>& all,
                std::vector<MapGradient>& gradients) const;

 private:
  void backward_sum(nn::Context& ctx, const std::vector<Kept>& all,
                    std::vector<MapGradient>& gradients, std::vector<View>& dc) const;
  void backward_shortcut(nn::Context& ctx, const std::vector<Kept>& all,
                         std::vector<MapGradient>& gradients) const;
  void backward_input(nn::Context& ctx, const View& dc, const Kept& kept, MapGradient& of) const;
};

class ResnetTrunk : public ConvTrunk<ResnetStem, ResnetBlock> {
 public:
  ResnetTrunk(const ResnetConfig& config, Recompute recompute, ParameterList& list);

  std::vector<Tap> taps(int64_t height, int64_t width) const override;
  std::vector<std::string> pooled_taps() const override { return {"res5avg", "flatten"}; }
  TrunkWeights weights() const override { return resnet_weights(); }
  std::string changing_arguments() const override {
    return config_.norm == ResnetNorm::batch ? "batch norm exchanges sums between ranks" : "";
  }

 private:
  ResnetUnit add_unit(ParameterList& list, const std::string& convolution, const std::string& norm,
                      nn::Convolution shape, bool zero_scale) const;
  ResnetBlock make_block(ParameterList& list, const std::string& path, int stage, int64_t stride,
                         int64_t in) const;

  ResnetConfig config_;
};

// Keys of trunk.kind = "resnet".
struct ResnetTrunkOptions : TrunkKeys {
  int64_t depth = 50;
  ResnetConfig config;  // the keys' values; `blocks` and `bottleneck` follow from the depth
  void bind(config::Table& t) override;
  std::unique_ptr<Trunk> make(int64_t height, int64_t width, Recompute recompute,
                              ParameterList& list) const override;
  PoolingConfig pooling() const override { return {.pool = Pool::grid}; }
};

// Returns the number of blocks of each stage of a published depth; nothing for another depth.
std::optional<std::array<int64_t, 4>> resnet_blocks(int64_t depth);
// Basic blocks below depth 50, bottlenecks from there on.
inline bool has_bottlenecks(int64_t depth) { return depth >= 50; }

}  // namespace models
