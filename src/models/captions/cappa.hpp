// SPDX-License-Identifier: Apache-2.0
// CapPa (arXiv 2306.07915): an image encoder and a caption decoder that predicts each example
// either autoregressively or, from mask tokens, in parallel (cappa.md 1.6).
#pragma once

#include "base/elementary.hpp"
#include "models/caption_scorer.hpp"
#include "models/captioner.hpp"
#include "models/captions/cappa_options.hpp"
#include "models/decoders/caption_decoder.hpp"
#include "models/decoders/caption_head.hpp"
#include "models/embedder.hpp"
#include "models/trunks/pooled_trunk.hpp"

namespace models {

class Cappa : public Model, public CaptionScorer, public Captioner, public Embedder {
 public:
  // Columns of the sums of a pass, in the order of kernels::LossSums. Its second group holds the
  // examples that are predicted in parallel.
  struct Sums {
    enum Column {
      loss,
      loss_ar,
      loss_parallel,
      examples_ar,
      examples_parallel,
      tokens,
      token_nll,
      count
    };
  };
  // Indices into measures().
  struct Measures {
    enum Index { loss, loss_ar, loss_parallel, loss_per_token };
  };
  // The decisions of a step: the examples that are predicted in parallel, the decoder's ids, and
  // the tokens of an image that the decoder reads.
  struct Draws {
    std::vector<uint8_t> parallel;     // [n]
    std::vector<int32_t> decoder_ids;  // [n * length]
    // [n * kept_tokens()]: rows of the n images' tokens, ascending; empty with keep_ratio = 1
    std::vector<int32_t> kept;
  };
  // The state of one pass.
  struct State {
    std::unique_ptr<Trunk::Pass> encoder;
    CaptionDecoder::Pass decoder;
    CaptionHead::Pass head;
    // by example: number of leading positions that the layers need, and that the loss needs
    std::vector<int64_t> needed, loss_ends;
  };

  Cappa(const CappaOptions& options, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  TrunkWeights trunk_weights() const override;
  std::map<std::string, FeatureSpec> features() const override;
  double uniform_loss() const override { return base::math::log(double(options_.vocab_size)); }
  int64_t sum_columns() const override { return Sums::count; }
  std::vector<Measure> measures() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::unique_ptr<ScorePass> make_score_pass() const override;
  std::vector<Tap> taps() const override;
  std::string feature_tap() const override { return encoder_.feature_tap(); }
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  std::unique_ptr<PairScorePass> make_pair_score_pass() const override;
  std::unique_ptr<CaptionPass> make_caption_pass(const CaptionLimits& limits) const override;
  std::string changing_arguments() const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;

  // ---- parts of passes
  std::vector<InputSpec> inputs() const;
  // Makes the decisions of a step (cappa.md 1.6): a pure function of stream and position.
  Draws draw(const int32_t* labels, int64_t examples, int64_t first_position, bool train,
             base::Stream stream) const;
  // Makes the inputs that are no fields. Throws Error(Exit::data) for a label outside the
  // vocabulary.
  void prepare(const HostBatch& batch, bool train, base::Stream stream, const Inputs& into) const;
  void prepare(const HostBatch& batch, const Draws& draws, const Inputs& into) const;
  void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums,
                        State& state) const;
  // Computes the losses of all positions and stores them in state.head.
  void evaluate(nn::Context& ctx, const Inputs& inputs, State& state) const;
  // Writes the logits [batch * length, vocabulary] of a forward pass. ctx.keep must be false.
  void logits(nn::Context& ctx, const Inputs& inputs, View out, State& state) const;
  // The trunk, whose tokens the decoder reads, and the images that it reads.
  const Trunk& encoder() const { return encoder_.trunk(); }
  ImageGroup images(View of = {}) const {
    return {.images = of, .height = options_.height(), .width = options_.width()};
  }
  const CaptionDecoder& decoder() const { return decoder_; }
  const CaptionHead& head() const { return head_; }
  const CappaOptions& options() const { return options_; }
  // True if training computes every position of the text.
  bool computes_all_rows() const { return decoder_.drops() || !options_.pack_text; }
  int64_t tokens() const { return decoder_.config().memory_length; }  // of an image
  int64_t kept_tokens() const { return options_.kept_tokens(tokens()); }

 private:
  void check_labels(const HostBatch& batch) const;
  void fill(const HostBatch& batch, const Draws& draws, const Inputs& into) const;
  // True if the decoder reads some of the tokens alone.
  bool drops_tokens() const { return options_.keep_ratio < 1; }
  std::vector<int32_t> draw_kept(int64_t examples, int64_t first_position, bool train,
                                 const base::Stream& stream) const;
  View flags(const Inputs& inputs) const;
  CaptionDecoder::Memory memory(nn::Context& ctx, const Inputs& inputs, View encoded) const;
  void select(const nn::Context& ctx, const Inputs& inputs, State& state) const;
  void place(nn::Context& ctx, State& state) const;
  View decode(nn::Context& ctx, const Inputs& inputs, State& state) const;
  void backward_decoder(nn::Context& ctx, const Inputs& inputs, View d, View d_encoded,
                        State& state) const;

  CappaOptions options_;
  ParameterList list_;
  PooledTrunk encoder_;
  CaptionDecoder decoder_;
  CaptionHead head_;
  bool bytes_ = false;  // images come as bytes
};

}  // namespace models
