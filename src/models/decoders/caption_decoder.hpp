// SPDX-License-Identifier: Apache-2.0
// The caption decoder (cappa.md 1.5): token and position embedding, then pre-norm blocks of
// self-attention, cross-attention and MLP. Attention projections have no biases. Norms and MLPs
// have biases if `bias` is set.
#pragma once

#include "models/block_stack.hpp"
#include "models/decoders/text_rows.hpp"
#include "models/parameter_list.hpp"

namespace models {

// The configuration of a decoder. A model makes it from its own keys.
struct DecoderConfig {
  int64_t depth = 0, width = 0, mlp = 0, heads = 0;
  bool bias = false;
  float dropout = 0;
  int64_t memory_length = 0, memory_width = 0;  // encoded image: most tokens, width
  int64_t length = 0;                           // positions of a text
  int64_t position_rows = 0;                    // rows of the position table, at least `length`
  int64_t embedding_rows = 0;                   // rows of the token table
  bool learned_positions = true;                // otherwise sincos2d
};

class CaptionDecoder {
 public:
  CaptionDecoder(const DecoderConfig& config, Recompute recompute, ParameterList& list);

  struct Memory {
    View encoded;        // [batch * length, memory_width]
    View flags;          // u8 [batch], 1 = causal; none: all causal
    int64_t length = 0;  // tokens of an image, at most memory_length
  };
  // The rows that a pass computes. All layers but the last compute `rows`. The last layer uses them
  // as keys and values only, and computes `last`, a subset.
  struct Selection {
    TextRows rows, last;
    View text_index{};  // i32, by row of `rows`: its number in the whole text
    View last_index{};  // i32, by row of `last`: its number in `rows`
    // Copies the indices to where ops read them, until the arena is popped.
    void place(nn::Context& ctx);

   private:
    std::vector<int32_t> index_;  // workspace, kept to reuse its memory
  };

  struct Layer {
    int number = 0;
    nn::LayerNorm norm1, norm2, norm3;
    nn::Attention self, cross;
    nn::Mlp mlp;
    struct Saved {
      // n1_last: n1 of the rows that the layer computes, fewer than all only in the last layer
      View n1, n1_last, x, n2, y, n3;
      nn::LayerNorm::Saved norm1, norm2, norm3;
      nn::Attention::Saved self, cross;
      nn::Mlp::Saved mlp;
    };
  };
  using Stack = BlockStack<Layer>;

  // The state of one pass, from place() to the end of its backward pass.
  struct Pass {
    Selection selection;  // filled by the caller, before place()
    View positions;       // the fixed table, if any
    Memory memory;
    View ids;
    device::Arena::Mark start{};
    Stack::Pass blocks;
  };

  // True if training has dropout. Training then needs all rows, because the draws of a row depend
  // on its number.
  bool drops() const { return config_.dropout > 0; }
  // Copies the host's tables to where ops read them, until the arena is popped.
  void place(nn::Context& ctx, Pass& pass) const;
  // ids: i32 [batch * length]. Returns [selection.last.count(), width], before the final norm.
  View forward(nn::Context& ctx, View ids, const Memory& memory, int next_block, Pass& pass) const;
  // d: gradient of forward's result, used as workspace. Overwrites d_encoded.
  void backward(nn::Context& ctx, View d, View d_encoded, int next_block, Pass& pass) const;
  int64_t forward_flops(int64_t memory_length) const;
  int first_block() const { return embed_block_; }
  // ---- for passes that run the layers in an order of their own
  const DecoderConfig& config() const { return config_; }
  const Stack& stack() const { return blocks_; }
  int token_table() const { return table_; }             // parameter
  int position_parameter() const { return positions_; }  // -1: there is none
  const std::vector<float>& fixed_positions() const { return position_table_; }
  int last_block() const { return blocks_.last_block(); }

 private:
  void forward_layer(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View out, bool save,
                     const Pass& pass) const;
  void backward_layer(nn::Context& ctx, const Layer& layer, Stack::Kept& kept,
                      const nn::StreamGradient& d, const nn::StreamGradient& d_all, View d_encoded,
                      const Pass& pass) const;
  void backward_embedding(nn::Context& ctx, View d, const Pass& pass) const;
  void pick_last(nn::Context& ctx, View from, View to, const Selection& selection) const;
  static kernels::Mask mask(const Memory& memory) {
    return memory.flags.none() ? kernels::Mask::causal : kernels::Mask::per_example;
  }

  DecoderConfig config_;
  int embed_block_ = 0, table_ = -1;
  int positions_ = -1;                 // parameter; -1: none
  std::vector<float> position_table_;  // the fixed table, used if positions_ is -1
  Stack blocks_;
};

}  // namespace models
