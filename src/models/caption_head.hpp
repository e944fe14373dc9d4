// Final norm, logits and loss (cappa.md 1.5, 3). Only rows that carry weight reach the vocabulary: they are packed, in fixed chunks
// (the last one padded), so that the shapes never depend on the captions. Loss and its gradient are made in one pass.
#pragma once

#include "models/cappa_options.hpp"
#include "models/model.hpp"
#include "models/parameter_list.hpp"
#include "models/text_rows.hpp"

namespace models {

class CaptionHead {
 public:
  CaptionHead(const CappaOptions& options, const LossOptions& loss, int64_t logits_mb, ParameterList& list);

  // What a pass predicts, packed in chunks of so many rows: for each its row of y (-1: padding), its label, the scale of its
  // gradient, and, once it is known, its loss (unscaled NLL). Chunks [first[j], first[j + 1]) are of slice j; those of an example
  // lie together from `examples` on.
  struct Targets {
    int64_t rows = 0;
    const std::vector<int64_t>& first;
    View index, labels, scale, loss;  // [chunks * rows]
    View examples;                    // i32 [batch]; none where no gradients are wanted
  };
  // Every position that carries weight must be among the rows; labels i32, weights f32 [batch * length] on the host. Gradients
  // are those of sum_b (1 / (global_batch n_b)) sum_l w loss; global_batch 0: none are wanted, and slices make no difference.
  // The result lives until the arena is popped, or the next call.
  Targets place_targets(nn::Context& ctx, const TextRows& rows, View labels, View weights, int64_t global_batch);
  // y [rows.count(), width]: makes the losses, with smoothing, and their gradient in dy.
  void forward_backward(nn::Context& ctx, View y, const TextRows& rows, const Targets& targets, View dy, int next_block);
  // Forward only, without smoothing.
  void evaluate(nn::Context& ctx, View y, const TextRows& rows, const Targets& targets);
  // Waits for the losses: [batch * length], by position, 0 where there is no weight.
  void read_losses(nn::Context& ctx, const Targets& targets, std::vector<float>& row_loss) const;
  // logits [batch * length, vocabulary] of every row: for tests and scoring, not for training.
  void logits(nn::Context& ctx, View y, View out);
  int64_t forward_flops() const;
  int block() const { return block_; }

 private:
  struct Chunk {
    View x, logits, dx;
  };
  int64_t chunk_rows(nn::Context& ctx) const;
  Chunk make_chunk(nn::Context& ctx, int64_t rows, bool gradient) const;
  // Logits of the chunk's rows.
  void forward_chunk(nn::Context& ctx, const Chunk& chunk, View normed, View index, View kernel) const;
  // Adds those of an example to the tables.
  void add_targets(const TextRows& rows, View labels, View weights, int64_t example, int64_t global_batch, bool on_paper);

  CappaOptions options_;
  LossOptions loss_;
  int64_t logits_mb_, width_, length_;
  int block_;
  nn::LayerNorm norm_;
  nn::Linear head_;
  // Of the pass under way, by target.
  std::vector<int32_t> positions_, index_, labels_;  // positions: -1: padding
  std::vector<int32_t> examples_;                    // by example: its first target
  std::vector<float> scale_;
  std::vector<int64_t> first_;
  bool adds_ = false;                // a second chunk's product has been made
};

}  // namespace models
