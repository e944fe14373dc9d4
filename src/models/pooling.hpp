// SPDX-License-Identifier: Apache-2.0
// Pooling of a ViT's tokens into one vector per image, like in the published ViT. gap: the mean of
// the tokens. tok: the class token. map: attention of a learned probe, then layer norm and an MLP
// with residual.
#pragma once

#include "models/block_stack.hpp"
#include "models/parameter_list.hpp"

namespace models {

enum class Pool { gap, map, tok };

struct PoolingConfig {
  Pool pool = Pool::gap;
  int64_t tokens = 0, width = 0;  // the ViT's
  int64_t mlp = 0, heads = 0;     // the map head's
};

class Pooling {
 public:
  Pooling(const PoolingConfig& config, Recompute recompute, ParameterList& list);

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
    View index;  // tok: each example's class token; map: the probe, for each example
    device::Arena::Mark start{};
    Stack::Pass blocks;
  };

  // Copies the host's tables to where ops read them, until the arena is popped.
  void place(nn::Context& ctx, Pass& pass) const;
  // Places the rows of the class tokens, for tok, if images have different numbers of tokens.
  void place(View class_tokens, Pass& pass) const {
    CHECK(config_.pool == Pool::tok);
    pass.index = class_tokens;
  }
  // tokens [batch * tokens, width], or packed; returns [batch, width].
  View forward(nn::Context& ctx, View tokens, int next_block, Pass& pass) const;
  // d: gradient of forward's result, used as workspace. Writes d_tokens [batch * tokens, width].
  void backward(nn::Context& ctx, View d, View d_tokens, int before, Pass& pass) const;

  bool has_block() const { return config_.pool == Pool::map; }
  int block() const { return blocks_.first_block(); }  // with has_block()
  int64_t forward_flops() const;

 private:
  void forward_map(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View y, View index,
                   bool save) const;
  void backward_map(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View d,
                    View d_tokens) const;
  nn::Sequences queries(const nn::Context& ctx) const { return {1, ctx.batch}; }
  nn::Sequences keys(const nn::Context& ctx) const {
    return {config_.tokens, ctx.batch * config_.tokens};
  }

  PoolingConfig config_;
  Stack blocks_;  // the map head; empty for the other poolings
};

}  // namespace models
