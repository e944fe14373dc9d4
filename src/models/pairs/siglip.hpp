// SPDX-License-Identifier: Apache-2.0
// SigLIP (arXiv 2303.15343): a tower of images and a tower of texts, whose embeddings are compared
// pair by pair over the whole global batch (siglip.md).
#pragma once

#include "models/caption_scorer.hpp"
#include "models/embedder.hpp"
#include "models/losses/losses.hpp"
#include "models/pairs/text_tower.hpp"
#include "models/trunks/pooled_trunk.hpp"

namespace models {

// Keys of [model] kind = "siglip".
struct SiglipOptions : config::Table::Variant {
  // Height and width. Tests with images that are not square set image_height and image_width.
  int64_t image_size = 224;
  int64_t image_height = 0, image_width = 0;
  int64_t vocab_size = 32000, seq_len = 64;
  bool image_head = false;
  int64_t dim = 0;  // 0: the trunk's width
  SigmoidLossOptions loss;
  TrunkOptions trunk;
  TextOptions text;
  void bind(config::Table& t) override;

  int64_t height() const { return image_height ? image_height : image_size; }
  int64_t width() const { return image_width ? image_width : image_size; }
};

class Siglip : public Model, public PairScorer, public Embedder {
 public:
  // The state of one pass.
  struct State {
    PooledTrunk::Pass image;
    TextTower::Pass text;
    View image_features, text_features;  // what the heads read
    device::Arena::Mark start{};
  };

  Siglip(const SiglipOptions& options, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  TrunkWeights trunk_weights() const override;
  std::map<std::string, FeatureSpec> features() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  int64_t sum_columns() const override { return 1; }
  std::vector<Measure> measures() const override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::unique_ptr<PairScorePass> make_pair_score_pass() const override;
  std::vector<Tap> taps() const override;
  std::string feature_tap() const override { return trunk_.feature_tap(); }
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  std::string changing_arguments() const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;

  // ---- parts of passes
  InputSpec image_input() const;
  std::vector<InputSpec> inputs() const;
  void check_ids(const int32_t* ids, int64_t count, const std::string& whose) const;
  State make_state() const {
    State state;
    state.image = trunk_.make_pass();
    return state;
  }
  // Compute embeddings, f32 [batch, dim()], before they are normalised. Tables must be placed.
  void place_images(nn::Context& ctx, State& state) const;
  void place_texts(nn::Context& ctx, State& state) const { text_.place(ctx, state.text); }
  // next: the block whose weights are gathered ahead, or -1. Texts begin with text_block().
  void embed_images(nn::Context& ctx, View images, View out, int next, State& state) const;
  int text_block() const { return text_.first_block(); }
  void embed_texts(nn::Context& ctx, View ids, View out, State& state) const;
  // Computes the gradients of all parameters but the loss's. gradients: of the two embeddings, used
  // as workspace. Pops the arena to state.start.
  void backward(nn::Context& ctx, std::span<const View> gradients, State& state) const;
  const EmbeddingLoss& loss() const { return *loss_; }
  const TextTower& text() const { return text_; }
  int64_t dim() const { return dim_; }
  int last_block() const { return text_head_.block; }

 private:
  // A product behind a tower, in a block of its own.
  struct Projection {
    int block = -1;  // -1: there is none
    nn::Linear linear;
  };
  Projection project(const std::string& path, int64_t in);
  // Returns the width of embeddings. Error(Exit::config) if images without a head have another
  // width.
  int64_t dim_of(const SiglipOptions& options) const;
  ImageGroup images(View of = {}) const {
    return {.images = of, .height = options_.height(), .width = options_.width()};
  }

  SiglipOptions options_;
  ParameterList list_;
  PooledTrunk trunk_;
  int64_t dim_;
  Projection image_head_;
  TextTower text_;
  Projection text_head_;
  std::unique_ptr<EmbeddingLoss> loss_;
  bool bytes_ = false;  // images come as bytes
};

// Makes the pass of training (siglip_pass.cpp). `model` must outlive it.
std::unique_ptr<TrainPass> make_siglip_pass(const Siglip& model);
std::unique_ptr<PairScorePass> make_siglip_scores(const Siglip& model);

}  // namespace models
