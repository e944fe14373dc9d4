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

  // y [rows.count(), width]: every position that carries weight is among the rows; labels i32, weights f32 [batch * length] on
  // the host. Returns, per position, loss (unscaled NLL with smoothing) in `row_loss` (0 where the weight is 0) and the gradient
  // of sum_b (1 / (global_batch n_b)) sum_l w loss in dy.
  void forward_backward(nn::Context& ctx, View y, const TextRows& rows, View labels, View weights, int64_t global_batch,
                        float* row_loss, View dy, int next_block);
  // Forward only, without smoothing.
  void evaluate(nn::Context& ctx, View y, const TextRows& rows, View labels, View weights, float* row_loss);
  // logits [batch * length, vocabulary] of every row: for tests and scoring, not for training.
  void logits(nn::Context& ctx, View y, View out);
  int64_t forward_flops() const;
  int block() const { return block_; }

 private:
  struct Chunk {
    View x, logits, dx, index, labels, scale, loss;
  };
  int64_t chunk_rows(nn::Context& ctx) const;
  Chunk make_chunk(nn::Context& ctx, int64_t rows, bool gradient) const;
  // A position that carries weight, and its row of y.
  struct Target {
    int32_t position, row;
  };
  // Of examples [begin, end).
  void find_targets(nn::Context& ctx, const TextRows& rows, View weights, int64_t begin, int64_t end);
  // Fills index, labels, scale for targets [begin, begin + chunk); padding has index -1.
  void pack(nn::Context& ctx, const Chunk& chunk, size_t begin, View labels, const std::vector<float>& scale) const;
  void keep_losses(nn::Context& ctx, const Chunk& chunk, size_t begin, float* row_loss) const;

  CappaOptions options_;
  LossOptions loss_;
  int64_t logits_mb_, width_, length_;
  int block_;
  nn::LayerNorm norm_;
  nn::Linear head_;
  std::vector<Target> targets_;      // reused
  std::vector<float> scale_;
  bool adds_ = false;                // a second chunk's product has been made
};

}  // namespace models
