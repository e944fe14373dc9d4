// SPDX-License-Identifier: Apache-2.0
// A ViT without a pooling head (cappa.md 1.4). Output: normalised tokens [batch * tokens, width].
#pragma once

#include "kernels/patchify.hpp"
#include "models/block_stack.hpp"
#include "models/parameter_list.hpp"

namespace models {

// Position table of fixed sines and cosines on a height x width grid (cappa.md 1.4): [height *
// width, columns].
std::vector<float> sincos2d(int64_t height, int64_t width, int64_t columns);

// Everything that a ViT needs to know; a model makes it from its own keys.
struct VitConfig {
  int64_t image_height = 0, image_width = 0;
  int64_t patch_height = 0, patch_width = 0;  // they divide the image's
  int64_t depth = 0, width = 0, mlp = 0, heads = 0;
  float dropout = 0;
  bool learned_positions = true;  // otherwise sincos2d
  // a learned token in front of those of the patches, without a position
  bool class_token = false;

  int64_t grid_height() const { return image_height / patch_height; }
  int64_t grid_width() const { return image_width / patch_width; }
  int64_t patches() const { return grid_height() * grid_width(); }
  int64_t tokens() const { return patches() + class_token; }
};

class Vit {
 public:
  Vit(const VitConfig& config, Recompute recompute, ParameterList& list);

  struct Layer {
    nn::LayerNorm norm0, norm1;
    nn::Attention attention;
    nn::Mlp mlp;
    struct Saved {
      View n0, a, n1;
      nn::LayerNorm::Saved norm0, norm1;
      nn::Attention::Saved attention;
      nn::Mlp::Saved mlp;
    };
  };
  using Stack = BlockStack<Layer>;

  // The state of one pass, from place() to the end of its backward pass.
  struct Pass {
    View positions;  // the fixed table, where there is one
    // With a class token: for each token its row among those of the patches and the class token
    // behind them; for each patch, and for each example's class token, its row among the tokens.
    View from_patches, of_patches, of_class;
    View patches;  // rows of pixels, the stem's input
    View tokens;   // the last block's output
    device::Arena::Mark start{}, norm_mark{};
    nn::LayerNorm::Saved norm;
    Stack::Pass blocks;
  };

  // Copies what the host has made to where ops read it. It stays there until the arena is popped.
  void place(nn::Context& ctx, Pass& pass) const;
  // image [batch, height, width, 3]: f32, or u8 after take_bytes.
  View forward(nn::Context& ctx, View image, int next_block, Pass& pass) const;
  // d: gradient of forward's result; overwritten on the way.
  void backward(nn::Context& ctx, View d, Pass& pass) const;
  // Images come as bytes; `range` says which value each byte stands for.
  void take_bytes(const kernels::PixelRange& range) { bytes_ = range; }

  int64_t forward_flops() const;
  int64_t input_flops() const { return 2 * config_.patches() * stem_.in * config_.width; }
  bool drops() const { return config_.dropout > 0; }
  int last_block() const { return norm_block_; }
  const VitConfig& config() const { return config_; }

 private:
  void embed(nn::Context& ctx, View image, View x, Pass& pass) const;
  void backward_stem(nn::Context& ctx, View d, Pass& pass) const;
  void forward_layer(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View y,
                     bool save) const;
  void backward_layer(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View d) const;

  VitConfig config_;
  kernels::PixelRange bytes_{};
  int stem_block_ = 0, norm_block_ = 0;
  nn::Linear stem_;
  int positions_ = -1;        // parameter, or
  std::vector<float> table_;  // fixed table
  int class_token_ = -1;      // parameter
  Stack blocks_;
  nn::LayerNorm norm_;
};

}  // namespace models
