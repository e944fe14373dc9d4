// SPDX-License-Identifier: Apache-2.0
// Pooling: the part that turns the tokens of an image into one vector.
//   gap    the mean of the tokens, as in ViTs
//   grid   the mean over the grid as a pooling with one window, as in ResNets; in ConvNeXts a layer
//          norm follows
//   tok    the class token, or another one that Tokens::class_rows names
//   map    attention of a learned probe, then layer norm and an MLP with residual
// Both means exist because they sum in different orders, so their bits differ.
#pragma once

#include "models/block_stack.hpp"
#include "models/parameter_list.hpp"
#include "models/tokens.hpp"

namespace models {

enum class Pool { gap, map, tok, grid };

struct PoolingConfig {
  Pool pool = Pool::gap;
  int64_t mlp = 0, heads = 0;  // the map head's, as the next two
  nn::Gelu gelu = nn::Gelu::tanh;
  float norm_epsilon = 1e-6f;
  std::string path = "encoder/MAPHead_0";
  std::string norm{};  // path of the layer norm after a grid's mean; "": none
};

class Pooling {
 public:
  // width: of a token.
  Pooling(const PoolingConfig& config, int64_t width, Recompute recompute, ParameterList& list);

  // The map head.
  struct Layer {
    int probe = -1;
    nn::Attention attention;
    nn::LayerNorm norm;
    nn::Mlp mlp;
    struct Saved {
      View probes, a, n;
      nn::Attention::Saved attention;
      nn::LayerNorm::Saved norm;
      nn::Mlp::Saved mlp;
    };
  };
  using Stack = BlockStack<Layer>;

  // The state of one pass, from place() to the end of its backward pass.
  struct Pass {
    int64_t views = 1;   // of an example
    int64_t tokens = 0;  // of an image of group 0
    // i32. tok: the row of each image's class token; map: the probe, for each image; grid with
    // several groups: the place of each vector among the means, which are ordered by group
    View index;
    std::vector<View> of_group;  // i32, grid with several groups: places of a group's vectors
    device::Arena::Mark start{};
    Stack::Pass blocks;
    View means;  // of a grid with a norm
    nn::LayerNorm::Saved norm;
  };

  // Copies the host's tables to where ops read them, until the arena is popped. Values of the
  // tokens may be missing.
  void place(nn::Context& ctx, const Tokens& tokens, Pass& pass) const;
  // Returns f32 [examples, views, width].
  View forward(nn::Context& ctx, const Tokens& tokens, int next_block, Pass& pass) const;
  // d: gradient of forward's result, used as workspace. Writes d_tokens. before: the block that
  // runs backward next.
  void backward(nn::Context& ctx, View d, const Tokens& d_tokens, int before, Pass& pass) const;

  bool has_block() const { return has_map() || has_norm(); }
  int block() const { return has_map() ? blocks_.first_block() : norm_block_; }  // with has_block()
  // Returns the FLOPs of an image of `tokens` tokens.
  int64_t forward_flops(int64_t tokens) const;

 private:
  bool has_map() const { return config_.pool == Pool::map; }
  bool has_norm() const { return !config_.norm.empty(); }
  View forward_norm(nn::Context& ctx, View means, int next_block, Pass& pass) const;
  void place_groups(nn::Context& ctx, const Tokens& tokens, Pass& pass) const;
  View forward_grids(nn::Context& ctx, const Tokens& tokens, const Pass& pass) const;
  void backward_grids(nn::Context& ctx, View d, const Tokens& d_tokens, const Pass& pass) const;
  View class_tokens(nn::Context& ctx, View tokens, const Pass& pass) const;
  void forward_map(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View y,
                   const Pass& pass, bool save) const;
  void backward_map(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View d, View d_tokens,
                    const Pass& pass) const;
  nn::Sequences queries(const nn::Context& ctx) const { return {1, ctx.batch}; }
  static nn::Sequences keys(const nn::Context& ctx, const Pass& pass) {
    return {pass.tokens, ctx.batch * pass.tokens};
  }

  PoolingConfig config_;
  int64_t width_;
  Stack blocks_;        // the map head; empty for the other poolings
  nn::LayerNorm norm_;  // after a grid's mean
  int norm_block_ = -1;
};

}  // namespace models
