// SPDX-License-Identifier: Apache-2.0
// Final norm, logits and loss (cappa.md 1.5, 3). Only rows that carry weight reach the vocabulary:
// they are packed, in fixed chunks (the last one padded), so that the shapes never depend on the
// captions. Loss and its gradient are made in one pass.
#pragma once

#include "models/model.hpp"
#include "models/parameter_list.hpp"
#include "models/text_rows.hpp"

namespace models {

// Everything that a head needs to know; a model makes it from its own keys.
struct HeadConfig {
  int64_t width = 0, vocabulary = 0;
  int64_t length = 0;     // positions of a text
  int64_t logits_mb = 0;  // largest chunk of the [rows, vocabulary] logits, in MiB
  float smoothing = 0;    // share of the target given to all other tokens
};

class CaptionHead {
 public:
  CaptionHead(const HeadConfig& config, ParameterList& list);

  // The targets of a pass, packed in chunks of `rows`: for each its row of y (-1: padding), its
  // label, the scale of its gradient, and, once it is known, its loss (unscaled NLL). Chunks
  // [first[j], first[j + 1]) are of slice j; those of an example lie together from `examples` on.
  struct Targets {
    int64_t rows = 0;
    View index, labels, scale, loss;  // [chunks * rows]
    View examples;                    // i32 [batch]; none where no gradients are wanted
  };
  // The state of one pass, from place_targets() to its end.
  struct Pass {
    Targets targets;
    std::vector<int64_t> first;                     // [slices + 1]: chunks
    std::vector<int32_t> positions, index, labels;  // by target; positions: -1: padding
    std::vector<int32_t> examples;                  // by example: its first target
    std::vector<float> scale;                       // by target
    bool adds = false;                              // a second chunk's product has been made
  };
  // Every position that carries weight must be among the rows; labels i32, weights f32 [batch *
  // length] on the host. Gradients are those of sum_b (1 / (global_batch n_b)) sum_l w loss;
  // global_batch 0: none are wanted, and slices make no difference. The targets live until the
  // arena is popped.
  void place_targets(nn::Context& ctx, const TextRows& rows, View labels, View weights,
                     int64_t global_batch, Pass& pass) const;
  // y [rows.count(), width]: makes the losses, with smoothing, and their gradient in dy.
  void forward_backward(nn::Context& ctx, View y, const TextRows& rows, View dy, int next_block,
                        Pass& pass) const;
  // Forward only, without smoothing.
  void evaluate(nn::Context& ctx, View y, const TextRows& rows, const Pass& pass) const;
  // Waits for the losses: [batch * length], by position, 0 where there is no weight.
  void read_losses(nn::Context& ctx, const Pass& pass, std::vector<float>& row_loss) const;
  // logits [batch * length, vocabulary] of every row: for tests and scoring, not for training.
  void logits(nn::Context& ctx, View y, View out) const;
  int64_t forward_flops() const { return 2 * config_.length * config_.width * config_.vocabulary; }
  int block() const { return block_; }

 private:
  struct Chunk {
    View x, logits, dx;
  };
  int64_t chunk_rows(nn::Context& ctx) const;
  Chunk make_chunk(nn::Context& ctx, int64_t rows, bool gradient) const;
  // Logits of the chunk's rows.
  void forward_chunk(nn::Context& ctx, const Chunk& chunk, View normed, View index,
                     View kernel) const;
  // Adds the targets of an example to the tables of the pass.
  void add_targets(const TextRows& rows, View labels, View weights, int64_t example,
                   int64_t global_batch, bool on_paper, Pass& pass) const;

  HeadConfig config_;
  int block_;
  nn::LayerNorm norm_;
  nn::Linear head_;
};

}  // namespace models
