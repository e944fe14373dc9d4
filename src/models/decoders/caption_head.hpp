// SPDX-License-Identifier: Apache-2.0
// Final norm, logits and loss (cappa.md 1.5, 3). Logits are computed only for rows that carry
// weight. These rows are packed in chunks of one size (the last one padded), so shapes never depend
// on the captions. One pass computes the loss and its gradient.
#pragma once

#include "models/decoders/text_rows.hpp"
#include "models/model.hpp"
#include "models/parameter_list.hpp"

namespace models {

// The configuration of a head. A model makes it from its own keys.
struct HeadConfig {
  int64_t width = 0, vocabulary = 0;
  int64_t length = 0;     // positions of a text
  int64_t logits_mb = 0;  // largest chunk of the [rows, vocabulary] logits, in MiB
  float smoothing = 0;    // share of the target given to all other tokens
};

class CaptionHead {
 public:
  CaptionHead(const HeadConfig& config, ParameterList& list);

  // The targets of a pass, packed in chunks. Each target has its row of y (-1: padding), its label,
  // the scale of its gradient and its loss (unscaled NLL), which the pass computes. Slice j has
  // chunks [first[j], first[j + 1]). The targets of an example are consecutive.
  struct Targets {
    int64_t rows = 0;                 // of a chunk
    View index, labels, scale, loss;  // [chunks * rows]
    View examples;                    // i32 [batch]: first target; none without gradients
    // Logits that an evaluation also returns: i32 [picks], element of the chunk's logits [rows,
    // vocabulary]; f32 [picks]. None: no logits.
    View pick_index, picked;
  };
  // The state of one pass, from place_targets() to its end.
  struct Pass {
    Targets targets;
    std::vector<int64_t> first;                     // [slices + 1]: first chunk of each slice
    std::vector<int32_t> positions, index, labels;  // by target; position -1: padding
    std::vector<int32_t> examples;                  // by example: its first target
    std::vector<float> scale;                       // by target
    std::vector<int64_t> first_pick;                // [chunks + 1], or empty: no picks
    bool accumulate_made = false;                   // the product of a second chunk is prepared
  };
  // Makes the targets, which live until the arena is popped. Every position that carries weight
  // must be among the rows. labels i32, weights f32 [batch * length] are on the host. Gradients are
  // derivatives of sum_b (1 / (global_batch n_b)) sum_l w loss. With global_batch 0 there are no
  // gradients, and slices make no difference.
  void place_targets(nn::Context& ctx, const TextRows& rows, View labels, View weights,
                     int64_t global_batch, Pass& pass) const;
  // y [rows.count(), width]. Computes the losses, with smoothing, and their gradient dy.
  void forward_backward(nn::Context& ctx, View y, const TextRows& rows, View dy, int next_block,
                        Pass& pass) const;
  // Computes the losses without smoothing and the picked logits, and no gradients.
  void evaluate(nn::Context& ctx, View y, const TextRows& rows, const Pass& pass) const;
  // Waits for the losses [batch * length], by position. Positions without weight have 0.
  void read_losses(nn::Context& ctx, const Pass& pass, std::vector<float>& row_loss) const;
  // Computes the logits [batch * length, vocabulary] of all rows, for tests and scoring.
  void logits(nn::Context& ctx, View y, View out) const;
  int64_t forward_flops() const { return 2 * config_.length * config_.width * config_.vocabulary; }
  int block() const { return block_; }

 private:
  friend class CaptionSteps;
  struct Chunk {
    View x, logits, dx;
  };
  int64_t chunk_rows(nn::Context& ctx) const;
  Chunk make_chunk(nn::Context& ctx, int64_t rows, bool gradient) const;
  // Computes the logits of a chunk's rows.
  void forward_chunk(nn::Context& ctx, const Chunk& chunk, View normed, View index,
                     View kernel) const;
  void pick_logits(nn::Context& ctx, const Chunk& c, int64_t chunk, const Pass& pass) const;
  // Adds the targets of an example to the tables of the pass.
  void add_targets(const TextRows& rows, View labels, View weights, int64_t example,
                   int64_t global_batch, bool planned, Pass& pass) const;

  HeadConfig config_;
  int block_;
  nn::LayerNorm norm_;
  nn::Linear head_;
};

}  // namespace models
