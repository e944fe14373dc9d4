// SPDX-License-Identifier: Apache-2.0
// A ResNet without its head (ssl.md 1). Parameters have torchvision's names and shapes below
// "trunk/", for example "trunk/layer1.0.conv1.weight".
//
// Convolutions, and all activations between them, have the activations' type. Forward keeps the
// outputs of convolutions and of stages. Backward computes again what norms and ReLUs made of them:
// the inputs of convolutions when it needs them, the outputs of a stage's blocks before the stage.
// With recompute = "block" it keeps the outputs of blocks instead, and repeats convolutions.
// Several sizes of images run block by block, so that a block's weights are acquired once.
#pragma once

#include <array>
#include <optional>

#include "models/block_scope.hpp"
#include "models/trunk.hpp"
#include "nn/convolution.hpp"
#include "nn/image_norm.hpp"

namespace models {

// The initial values of convolutions: torch's default rule, which published self-supervised runs
// begin from, or torchvision's (ssl.md 1.5).
enum class ResnetInit { uniform, kaiming };

// The values that share mean and variance: those of a channel in a group of examples, or those of
// a group of channels in an image.
enum class ResnetNorm { batch, group };

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

class ResnetTrunk : public Trunk {
 public:
  ResnetTrunk(const ResnetConfig& config, Recompute recompute, ParameterList& list);

  struct Unit {
    nn::Convolution convolution;
    nn::ImageNorm norm;
  };
  struct Layer {
    int block = 0;
    std::vector<Unit> units;       // two of a basic block, three of a bottleneck
    std::optional<Unit> shortcut;  // none: the input itself
    int stage = 0;                 // 0 to 3
    bool ends_stage = false;
  };
  // The tensors that a unit keeps for its backward pass, for images of one size.
  struct UnitKept {
    View c;  // the convolution's output
    nn::ImageSize size;
    nn::ImageNorm::Saved statistics;
  };
  struct LayerKept {
    nn::ImageSize size;  // of x
    View x, y;
    std::array<UnitKept, 3> units;
    UnitKept shortcut;
    // The values that y is computed from again if it is not kept.
    kernels::BatchNormValues sum_values, shortcut_values;
  };
  struct StemKept {
    nn::ImageSize size;  // of the images
    UnitKept unit;
    View place;  // of the maxima
    View y;
    nn::ImageSize pooled;
  };
  template <class Kept>
  struct OfGroups {
    device::Arena::Mark mark{};  // position in the arena before the block saved anything
    std::vector<Kept> groups;
  };
  struct ResnetPass : Pass {
    std::vector<ImageGroup> groups;
    OfGroups<StemKept> stem;
    std::vector<OfGroups<LayerKept>> layers;
    // i32, with several groups: the place of each feature among those of all groups in turn
    View rows;
    std::vector<View> rows_of_group;  // the places of a group's features in the result
    device::Arena::Mark start{};
    // Tests ask for the gradient of images: views of the activations' type, by group.
    std::vector<View> image_gradients;
  };

  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<ResnetPass>(); }
  void place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const override;
  View forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
               Pass& pass) const override;
  void backward(nn::Context& ctx, View d, Pass& pass) const override;
  bool reads_images_again() const override { return true; }
  int64_t width() const override { return layers_.back().units.back().convolution.out; }
  int first_block() const override { return stem_block_; }
  int last_block() const override { return layers_.back().block; }
  std::vector<Tap> taps(int64_t height, int64_t width) const override;
  std::string feature_tap() const override { return "flatten"; }
  void take_bytes(const kernels::PixelRange& range) override { bytes_ = range; }
  std::string changing_arguments() const override {
    return config_.norm == ResnetNorm::batch ? "batch norm exchanges sums between ranks" : "";
  }
  int64_t forward_flops(std::span<const ImageGroup> groups) const override;
  int64_t input_flops(std::span<const ImageGroup> groups) const override;

 private:
  struct Gradients;
  Unit add_unit(ParameterList& list, const std::string& convolution, const std::string& norm,
                nn::Convolution shape, bool zero_scale) const;
  Layer make_layer(ParameterList& list, int stage, int64_t number, int64_t in) const;
  template <class F>
  int64_t sum_of_flops(std::span<const ImageGroup> groups, const F& flops_of_group) const;

  View pixels(nn::Context& ctx, View images) const;
  View run_unit(nn::Context& ctx, const Unit& unit, View x, const nn::ImageSize& size, bool save,
                nn::BatchNormCall call, UnitKept& kept) const;
  using Spare = std::vector<std::array<View, 2>>;  // by group
  Spare spare_outputs(nn::Context& ctx, std::span<const ImageGroup> groups, int stage) const;
  void make_stem(nn::Context& ctx, const Spare& spare, ResnetPass& pass) const;
  void make_layer_kept(nn::Context& ctx, size_t number, const Spare& spare, ResnetPass& pass) const;
  void forward_stem(nn::Context& ctx, ResnetPass& pass, bool save) const;
  void forward_layer(nn::Context& ctx, const Layer& layer, LayerKept& kept, bool save,
                     nn::BatchNormCall call) const;
  View activated(nn::Context& ctx, const Unit& unit, const UnitKept& kept, bool in_place) const;
  View pool(nn::Context& ctx, ResnetPass& pass) const;
  void read(const ResnetPass& pass, const std::string& tap, const nn::ImageSize& size,
            int64_t group, int64_t channels, View values) const;
  kernels::Window stem_window(int64_t images, const nn::ImageSize& size) const;
  nn::ImageSize pooled_size(const nn::ImageSize& images) const;
  nn::ImageSize output_size(const Layer& layer, nn::ImageSize size) const;

  void backward_pool(nn::Context& ctx, View d, const ResnetPass& pass, Gradients& gradients) const;
  bool keeps_output(const Layer& layer) const {
    return layer.ends_stage || recompute_ == Recompute::block;
  }
  void sum_again(nn::Context& ctx, size_t begin, size_t end, ResnetPass& pass) const;
  void run_again(nn::Context& ctx, const Layer& layer, std::vector<LayerKept>& kept) const;
  void backward_layer(nn::Context& ctx, size_t number, ResnetPass& pass,
                      Gradients& gradients) const;
  void backward_shortcut(nn::Context& ctx, const Layer& layer, const std::vector<LayerKept>& kept,
                         Gradients& gradients) const;
  void backward_stem(nn::Context& ctx, ResnetPass& pass, const Gradients& gradients) const;

  ResnetConfig config_;
  Recompute recompute_;
  kernels::PixelRange bytes_{};
  int stem_block_ = 0;
  Unit stem_;
  std::vector<Layer> layers_;
};

// Keys of trunk.kind = "resnet".
struct ResnetTrunkOptions : TrunkKeys {
  int64_t depth = 50;
  ResnetConfig config;  // the keys' values; `blocks` and `bottleneck` follow from the depth
  void bind(config::Table& t) override;
  std::unique_ptr<Trunk> make(int64_t height, int64_t width, Recompute recompute,
                              ParameterList& list) const override;
};

// Returns the number of blocks of each stage of a published depth; nothing for another depth.
std::optional<std::array<int64_t, 4>> resnet_blocks(int64_t depth);
// Basic blocks below depth 50, bottlenecks from there on.
inline bool has_bottlenecks(int64_t depth) { return depth >= 50; }

}  // namespace models
