// SPDX-License-Identifier: Apache-2.0
// A ViT without a pooling head (cappa.md 1.4). Its output is normalised tokens [batch * tokens,
// width].
#pragma once

#include <functional>

#include "kernels/patchify.hpp"
#include "models/block_stack.hpp"
#include "models/parameter_list.hpp"

namespace models {

// Returns the position table of fixed sines and cosines on a height x width grid (cappa.md 1.4):
// [height * width, columns].
std::vector<float> sincos2d(int64_t height, int64_t width, int64_t columns);

// Returns a matrix that resamples values on a grid by cubic convolution (a = -0.75, as in torch),
// without a filter: [to_height * to_width, from_height * from_width].
std::vector<float> cubic_resampling(int64_t from_height, int64_t from_width, int64_t to_height,
                                    int64_t to_width);

// Images of one size among several: each example has `per_example`.
struct VitViews {
  View images{};
  int64_t per_example = 1, height = 0, width = 0;
};

// The configuration of a ViT. A model makes it from its own keys.
struct VitConfig {
  int64_t image_height = 0, image_width = 0;
  int64_t patch_height = 0, patch_width = 0;  // must divide the image's
  int64_t depth = 0, width = 0, mlp = 0, heads = 0;
  float dropout = 0;
  bool learned_positions = true;  // otherwise sincos2d
  // adds a learned token without a position, in front of the tokens of the patches
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

  // The images of one size among several, in a pass.
  struct Size {
    VitViews views;
    int64_t grid_height = 0, grid_width = 0;
    // f32 [patches of this size, patches]: makes its position table; none for the usual grid
    View resampling{};
    View positions{};  // the fixed table, if any
    View rows{};       // i32, by patch: its row in the tokens
    View patches{};    // rows of pixels: the stem's input
    int64_t count() const { return grid_height * grid_width; }
  };
  // i32 tables that move rows between the embedded patches and the tokens. In the embedded patches
  // the class token is the last row.
  struct TokenRows {
    View sources;  // by token: its row in the embedded patches
    View patches;  // by patch: its row in the tokens
    View classes;  // by example: the row of its class token in the tokens
  };
  // The state of one pass, from place() to the end of its backward pass.
  struct Pass {
    // Several sizes of images (place_views): tokens are packed, example by example, in the order of
    // the sizes. Empty: one size.
    std::vector<Size> sizes;
    View offsets;                   // i32 [images + 1]: where the tokens of each image begin
    int64_t rows = 0, longest = 0;  // tokens of all images, and the most of an image
    View positions;                 // the fixed table, if any
    TokenRows token_rows;           // of a class token, and of several sizes
    View patches;                   // rows of pixels: the stem's input
    View tokens;                    // the last block's output
    device::Arena::Mark start{}, norm_mark{};
    nn::LayerNorm::Saved norm;
    Stack::Pass blocks;
    // Called with each block's number and its output [batch * tokens, width], which the next block
    // but one may overwrite; may be empty.
    std::function<void(int64_t block, View y)> after_block;
  };

  // Copies the host's tables to where ops read them, until the arena is popped.
  void place(nn::Context& ctx, Pass& pass) const;
  // Places images of several sizes, which must be multiples of the patch. The context's batch is
  // the number of images: views of all sizes of all examples.
  void place_views(nn::Context& ctx, const std::vector<VitViews>& views, Pass& pass) const;
  // image: [batch, height, width, 3], f32, or u8 after take_bytes. After place_views it is none,
  // and views in pass.sizes have the images.
  View forward(nn::Context& ctx, View image, int next_block, Pass& pass) const;
  // d: gradient of forward's result, used as workspace.
  void backward(nn::Context& ctx, View d, Pass& pass) const;
  // Switches images to bytes; `range` maps each byte to its value.
  void take_bytes(const kernels::PixelRange& range) { bytes_ = range; }

  // FLOPs of an image with the usual, or another, number of patches.
  int64_t forward_flops() const { return forward_flops(config_.patches()); }
  int64_t forward_flops(int64_t patches) const;
  int64_t input_flops() const { return input_flops(config_.patches()); }
  int64_t input_flops(int64_t patches) const { return 2 * patches * stem_.in * config_.width; }
  bool drops() const { return config_.dropout > 0; }
  int first_block() const { return stem_block_; }
  int last_block() const { return norm_block_; }
  const VitConfig& config() const { return config_; }

 private:
  void embed(nn::Context& ctx, View image, View x, Pass& pass) const;
  void backward_stem(nn::Context& ctx, const nn::StreamGradient& stream, Pass& pass) const;
  void embed_views(nn::Context& ctx, View x, Pass& pass) const;
  void backward_views(nn::Context& ctx, View d, const Pass& pass) const;
  View positions_of(nn::Context& ctx, const Size& size) const;
  nn::Sequences sequences(const nn::Context& ctx, const Pass& pass) const {
    if (!pass.sizes.empty()) return {pass.longest, pass.rows, pass.offsets};
    return {config_.tokens(), ctx.batch * config_.tokens()};
  }
  void forward_layer(nn::Context& ctx, const Layer& layer, const nn::Sequences& all,
                     Stack::Kept& kept, View y, bool save) const;
  void backward_layer(nn::Context& ctx, const Layer& layer, const nn::Sequences& all,
                      Stack::Kept& kept, const nn::StreamGradient& d) const;

  VitConfig config_;
  kernels::PixelRange bytes_{};
  int stem_block_ = 0, norm_block_ = 0;
  nn::Linear stem_;
  int positions_ = -1;        // parameter; -1: none
  std::vector<float> table_;  // the fixed table, without that parameter
  int class_token_ = -1;      // parameter; -1: none
  Stack blocks_;
  nn::LayerNorm norm_;
};

}  // namespace models
