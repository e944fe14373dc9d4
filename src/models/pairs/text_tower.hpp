// SPDX-License-Identifier: Apache-2.0
// A tower of texts (siglip.md 1): ids become tokens, the layers of a ViT mix all of them, and a
// pooling makes one vector. Parameters have big_vision's names, below "txt/".
#pragma once

#include "models/trunks/pooling.hpp"
#include "models/trunks/vit.hpp"

namespace models {

enum class TextPool { last, first, mean, map };

// Keys of [model] text.
struct TextOptions {
  int64_t depth = 12, width = 512, mlp = 2048, heads = 8;
  TextPool pool = TextPool::last;
  void bind(config::Table& t);
};

class TextTower {
 public:
  // vocabulary: rows of the table of tokens. length: of every text, padding included.
  TextTower(const TextOptions& options, int64_t vocabulary, int64_t length, Recompute recompute,
            ParameterList& list);

  // The state of one pass, from place() to the end of its backward pass.
  struct Pass {
    Tokens tokens, gradient;
    View ids;
    device::Arena::Mark start{};
    VitLayers::Pass layers;
    Pooling::Pass pooling;
  };

  // Copies the host's tables to where ops read them, until the arena is popped.
  void place(nn::Context& ctx, Pass& pass) const;
  // Returns f32 [batch, width], in the arena. ids: i32 [batch, length].
  View forward(nn::Context& ctx, View ids, int next_block, Pass& pass) const;
  // d: gradient of forward's result, used as workspace. before: the block that runs backward next.
  void backward(nn::Context& ctx, View d, int before, Pass& pass) const;

  int64_t length() const { return length_; }
  int64_t vocabulary() const { return vocabulary_; }
  int64_t width() const { return options_.width; }
  int first_block() const { return embed_block_; }
  int last_block() const { return pooling_.has_block() ? pooling_.block() : layers_.last_block(); }
  int64_t forward_flops() const {
    return layers_.forward_flops(length_) + pooling_.forward_flops(length_);
  }

 private:
  // Declares tables and layers, and returns the pooling, whose parameters come last.
  Pooling declare(Recompute recompute, ParameterList& list);
  nn::Sequences sequences(const nn::Context& ctx) const { return {length_, ctx.batch * length_}; }

  TextOptions options_;
  int64_t vocabulary_, length_;
  int embed_block_ = -1, table_ = -1, positions_ = -1;
  VitLayers layers_;
  Pooling pooling_;
};

}  // namespace models
