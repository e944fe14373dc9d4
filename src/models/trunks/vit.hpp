// SPDX-License-Identifier: Apache-2.0
// A ViT (cappa.md 1.4): the trunk whose tokens are the normalised tokens of patches. Parameters
// have the names and shapes of big_vision's ViT, below "encoder/". Its taps are
//   pre_logits     [width]          the pooled vector
//   encoded        [tokens, width]  the normalised tokens (cappa.md 1.4, points 5 and 6)
//   blockNN        [tokens, width]  the output of block NN, counted from 0: block00, block01, ...
//   blockNN_mean   [width]          the mean of blockNN over the tokens
#pragma once

#include "kernels/patchify.hpp"
#include "models/block_stack.hpp"
#include "models/trunks/trunk.hpp"

namespace models {

// Returns the position table of fixed sines and cosines on a height x width grid (cappa.md 1.4):
// [height * width, columns]. The last frequency is 1/10000.
std::vector<float> sincos2d(int64_t height, int64_t width, int64_t columns);

// Returns MAE's table (mae.md 2). Its frequencies are closer: the one after the last would be
// 1/10000.
std::vector<float> mae_positions(int64_t height, int64_t width, int64_t columns);

// Returns DINOv3's angles of places on a height x width grid, as cosines and sines for heads of
// head_dim numbers: [height * width, 2, head_dim / 2] (kernels/rotate_heads.hpp). Coordinates of a
// patch's middle lie in [-1, 1] on both axes; periods grow from 1 to 100.
std::vector<float> rotary2d(int64_t height, int64_t width, int64_t head_dim);

// Returns a matrix that resamples values on a grid by cubic convolution (a = -0.75, as in torch),
// without a filter: [to_height * to_width, from_height * from_width].
std::vector<float> cubic_resampling(int64_t from_height, int64_t from_width, int64_t to_height,
                                    int64_t to_width);

// The configuration of a ViT. A model makes it from its own keys. There are many members because
// each key has one.
struct VitConfig {
  int64_t image_height = 0, image_width = 0;
  int64_t patch_height = 0, patch_width = 0;  // must divide the image's
  int64_t depth = 0, width = 0, mlp = 0, heads = 0;
  float dropout = 0;
  nn::Gelu gelu = nn::Gelu::tanh;
  bool swiglu = false;  // MLPs are gated and have no GELU
  float norm_epsilon = 1e-6f;
  double layer_scale = 0;         // first value of the factors after attention and MLP; 0: none
  bool pre_norm = false;          // a norm of the embedded tokens, in front of the blocks
  bool learned_positions = true;  // otherwise sincos2d, or
  bool rotary = false;            // rotary2d: no table, queries and keys of patches are turned
  bool mae_table = false;         // mae_positions in the place of sincos2d
  // adds a learned token without a position, in front of the tokens of the patches
  bool class_token = false;
  int64_t registers = 0;  // more such tokens, behind the class token

  int64_t grid_height() const { return image_height / patch_height; }
  int64_t grid_width() const { return image_width / patch_width; }
  int64_t patches() const { return grid_height() * grid_width(); }
  int64_t front() const { return class_token + registers; }  // tokens that are no patches
  int64_t tokens() const { return front() + patches(); }
};

// Returns what a ViT declares about its tensors.
TrunkWeights vit_weights(const VitConfig& config);

// The layers of a ViT with the norm after them. They turn rows of tokens into normalised tokens.
// Towers of texts have them, too (siglip.md 1). No token is masked.
class VitLayers {
 public:
  struct Config {
    int64_t depth = 0, width = 0, mlp = 0, heads = 0;
    float dropout = 0;
    nn::Gelu gelu = nn::Gelu::tanh;
    bool swiglu = false;  // as VitConfig's, like what follows
    float norm_epsilon = 1e-6f;
    double layer_scale = 0;
    std::string path;  // of the blocks' parameters, as "encoder/Transformer"
  };
  VitLayers(Config config, Recompute recompute) : config_(std::move(config)), blocks_(recompute) {}
  // Declares the parameters, in new blocks at the end of the list.
  void declare(ParameterList& list);

  struct Layer {
    nn::LayerNorm norm0, norm1;
    nn::Attention attention;
    nn::Mlp mlp;
    nn::LayerScale scale0, scale1;  // of attention and MLP, if there are any
    struct Saved {
      View n0, a, n1;
      View branch0, branch1;  // what the factors multiply
      nn::LayerNorm::Saved norm0, norm1;
      nn::Attention::Saved attention;
      nn::Mlp::Saved mlp;
    };
  };
  using Stack = BlockStack<Layer>;

  // The state of one pass.
  struct Pass {
    View last;  // the last block's output
    device::Arena::Mark norm_mark{};
    nn::LayerNorm::Saved norm;
    Stack::Pass blocks;
  };

  // Returns the normalised tokens of x, f32 [rows, width], which `outputs` has made. `done(block,
  // y)` sees the output of each block, counted from 0.
  template <class Done>
  View forward(nn::Context& ctx, Outputs& outputs, View x, const nn::Sequences& all, int next_block,
               Pass& pass, const Done& done) const {
    const int64_t count = all.rows.count * config_.width;
    pass.last = blocks_.forward(
        ctx, outputs, x, norm_block_, pass.blocks, [&](const Layer&) { return count; },
        [&](const Layer& layer, Stack::Kept& kept, View y, bool save) {
          forward_layer(ctx, layer, all, kept, y, save);
          done(layer.mlp.layer, y);
        });
    return normalise(ctx, all, next_block, pass);
  }
  // Returns d as the gradient of the residual stream.
  nn::StreamGradient stream(nn::Context& ctx, View d) const {
    // Dropout or factors are between the stream and the layers that read its gradient.
    if (changes_branches(ctx)) return d;
    return {ctx, d, config_.width, true};
  }
  // Turns the gradient of the normalised tokens into the gradient of x. before: the block that runs
  // backward next.
  void backward(nn::Context& ctx, const nn::StreamGradient& stream, const nn::Sequences& all,
                int before, Pass& pass) const;

  int first_block() const { return blocks_.first_block(); }
  int last_block() const { return norm_block_; }
  // Returns the FLOPs of a sequence of `tokens` tokens.
  int64_t forward_flops(int64_t tokens) const;

 private:
  bool scales() const { return config_.layer_scale != 0; }
  bool drops(const nn::Context& ctx) const { return ctx.train && config_.dropout > 0; }
  bool changes_branches(const nn::Context& ctx) const { return scales() || drops(ctx); }
  // A branch of a layer, where it joins the stream.
  struct Joint {
    const nn::LayerScale& scale;
    const char* dropout_name;
    int layer;
    int64_t length;  // tokens of an example
  };
  void drop(nn::Context& ctx, const Joint& joint, View y, View x) const;
  void join(nn::Context& ctx, const Joint& joint, View branch, nn::Rows rows, View x, View y) const;
  void leave(nn::Context& ctx, const Joint& joint, View branch, nn::Rows rows, View d,
             View d_branch) const;
  View normalise(nn::Context& ctx, const nn::Sequences& all, int next_block, Pass& pass) const;
  void forward_layer(nn::Context& ctx, const Layer& layer, const nn::Sequences& all,
                     Stack::Kept& kept, View y, bool save) const;
  void backward_layer(nn::Context& ctx, const Layer& layer, const nn::Sequences& all,
                      Stack::Kept& kept, const nn::StreamGradient& d) const;

  Config config_;
  Stack blocks_;
  int norm_block_ = 0;
  nn::LayerNorm norm_;
};

// Groups may have several sizes if there is a class token and no dropout: position tables are
// resampled, and tokens are packed.
class Vit : public Trunk {
 public:
  Vit(const VitConfig& config, Recompute recompute, ParameterList& list);

  // The images of one size among several, in a pass.
  struct Size {
    ImageGroup views;
    int64_t grid_height = 0, grid_width = 0;
    // f32 [patches of this size, patches]: makes its position table; none for the usual grid
    View resampling{};
    View positions{};  // the fixed table, if any
    View rows{};       // i32, by patch: its row in the tokens
    View patches{};    // rows of pixels: the stem's input
    int64_t count() const { return grid_height * grid_width; }
  };
  // i32 tables that move rows between the embedded patches and the tokens. Behind the embedded
  // patches are the class token and the registers.
  struct TokenRows {
    View sources;    // by token: its row in the embedded patches
    View patches;    // by patch: its row in the tokens
    View classes;    // by example: the row of its class token in the tokens
    View registers;  // by example and register: its row in the tokens
  };
  // The patches of one size of images that a pass encodes; the others are left out. i32 tables, as
  // those of TokenRows.
  struct KeptPatches {
    int64_t count = 0;  // of an image
    View sources;       // [examples, front + count]
    View patches;       // [examples, patches]; -1: left out
  };
  // The host's copies of a pass's tables. They depend on the number and the sizes of images alone,
  // so they are made once and not in each pass.
  struct HostTables {
    // The tables fit these images.
    int64_t images = 0;
    std::vector<Tokens::Group> groups = {};

    std::vector<int32_t> sources = {}, patches = {}, classes = {}, registers = {}, offsets = {};
    struct OfSize {
      std::vector<int32_t> rows;
      std::vector<float> positions;  // the fixed table, or the matrix that resamples a learned one
    };
    std::vector<OfSize> sizes = {};
    std::vector<float> rotation = {};  // of the tokens of an example's images
  };
  struct VitPass : Pass {
    // Several sizes of images: tokens are packed. Empty: one size.
    std::vector<Size> sizes;
    View offsets;                   // i32 [images + 1]: where the tokens of each image begin
    int64_t rows = 0, longest = 0;  // tokens of all images, and the most of an image
    View positions;                 // the fixed table, if any
    View rotation;                  // angles of the tokens of an example's images, if any
    TokenRows token_rows;           // of a class token, and of several sizes
    View patches;                   // rows of pixels: the stem's input
    int64_t kept = 0;               // patches of an image that are encoded; 0: all
    View embedded;                  // the input of the norm in front of the blocks, if there is one
    nn::LayerNorm::Saved pre_norm;
    device::Arena::Mark start{};
    VitLayers::Pass layers;
    HostTables host;
  };

  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<VitPass>(); }
  // The sizes of images must be multiples of the patch. Error(Exit::config) for several sizes
  // without a class token or with dropout.
  void place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const override;
  // Prepares a pass that leaves out patches of its images, which have one size. The tokens of an
  // image are its class token and the kept patches. The ViT must have a class token, and neither
  // dropout nor registers nor rotary positions.
  void place_some(nn::Context& ctx, const ImageGroup& images, const KeptPatches& kept,
                  Pass& pass) const;
  const Tokens& forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
                        Pass& pass) const override;
  const Tokens& make_gradient(nn::Context& ctx, Pass& pass) const override;
  void backward(nn::Context& ctx, Pass& pass) const override;

  int64_t width() const override { return config_.width; }
  TokenGrid grid(int64_t height, int64_t width) const override {
    return {height / config_.patch_height, width / config_.patch_width, config_.front()};
  }
  int first_block() const override { return stem_block_; }
  int last_block() const override { return layers_.last_block(); }
  std::vector<Tap> taps(int64_t height, int64_t width) const override;
  std::vector<std::string> pooled_taps() const override { return {"pre_logits"}; }
  void take_bytes(const kernels::PixelRange& range) override { bytes_ = range; }
  TrunkWeights weights() const override;
  std::string changing_arguments() const override {
    return drops() ? "dropout draws other numbers in each pass" : "";
  }
  int64_t forward_flops(std::span<const ImageGroup> groups) const override;
  int64_t input_flops(std::span<const ImageGroup> groups) const override;
  // Returns the FLOPs of the forward pass of an image, if `kept` of its patches are encoded.
  int64_t flops_of_some(int64_t kept) const {
    return flops_of_patches(config_.patches()) + layers_.forward_flops(config_.front() + kept);
  }

 private:
  // In what follows every view is an example of the context.
  void place_size(nn::Context& ctx, VitPass& pass) const;
  void place_views(nn::Context& ctx, std::span<const ImageGroup> groups, VitPass& pass) const;
  void make_tables(HostTables& host) const;
  void make_view_tables(int64_t examples, HostTables& host) const;
  void add_rotation(const TokenGrid& grid, HostTables& host) const;
  std::vector<float> fixed_table(int64_t height, int64_t width) const;
  bool fixed_positions() const { return positions_ < 0 && !config_.rotary; }
  bool resamples(const TokenGrid& grid) const {
    return positions_ >= 0 &&
           (grid.height != config_.grid_height() || grid.width != config_.grid_width());
  }
  View encode(nn::Context& ctx, View images, int next_block, VitPass& pass) const;
  void embed(nn::Context& ctx, View images, View x, VitPass& pass) const;
  void embed_views(nn::Context& ctx, View x, VitPass& pass) const;
  void backward_stream(nn::Context& ctx, View d, VitPass& pass) const;
  void backward_pre_norm(nn::Context& ctx, const nn::StreamGradient& stream,
                         const VitPass& pass) const;
  void backward_stem(nn::Context& ctx, const nn::StreamGradient& stream, VitPass& pass) const;
  void backward_views(nn::Context& ctx, View d, const VitPass& pass) const;
  void append_front(nn::Context& ctx, View to) const;
  void backward_front(nn::Context& ctx, View d, const VitPass& pass) const;
  View positions_of(nn::Context& ctx, const Size& size) const;
  nn::Sequences sequences(const nn::Context& ctx, const VitPass& pass) const {
    if (!pass.sizes.empty()) return {pass.longest, pass.rows, pass.offsets, pass.rotation};
    const int64_t tokens = pass.kept > 0 ? config_.front() + pass.kept : config_.tokens();
    return {tokens, ctx.batch * tokens, {}, pass.rotation};
  }
  void read(nn::Context& ctx, const VitPass& pass, const std::string& tap, View values) const;
  bool drops() const { return config_.dropout > 0; }
  int64_t patches_of(const ImageGroup& group) const {
    const TokenGrid tokens = grid(group.height, group.width);
    return tokens.height * tokens.width;
  }
  int64_t flops_of_patches(int64_t patches) const { return 2 * patches * stem_.in * config_.width; }

  VitConfig config_;
  kernels::PixelRange bytes_{};
  int stem_block_ = 0;
  nn::Linear stem_;
  int positions_ = -1;        // parameter; -1: none
  std::vector<float> table_;  // the fixed table, used if positions_ is -1
  int class_token_ = -1;      // parameter; -1: none
  int registers_ = -1;        // parameter; -1: none
  nn::LayerNorm pre_norm_;    // used if the configuration has one
  VitLayers layers_;
};

}  // namespace models
