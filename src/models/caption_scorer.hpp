// SPDX-License-Identifier: Apache-2.0
// Capability of a model that scores captions: the likelihood of each caption, given its image.
#pragma once

#include <memory>
#include <vector>

#include "models/model.hpp"

namespace models {

class ScorePass : public ForwardPass {
 public:
  virtual void prepare(const HostBatch& batch, const Inputs& into) const = 0;
  // Writes each example's sum of negative log-likelihoods, autoregressive, and its number of
  // weighted tokens: f64 [ctx.batch] each, on the host. Both may be null on the plan back end.
  virtual void run(nn::Context& ctx, const Inputs& inputs, double* nll, double* weight) = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override { run(ctx, inputs, nullptr, nullptr); }
};

// Texts as ids [texts, length]. The model's pad id follows the last token of each text.
struct TextList {
  int64_t length = 0;
  std::vector<int32_t> ids;

  int64_t count() const { return length ? int64_t(ids.size()) / length : 0; }
};

// Scores every image of a batch against every text of a list (cappa.md 2.3, `score`). Each image is
// encoded once. A score depends on the image and the list alone, not on the batch.
class PairScorePass : public ForwardPass {
 public:
  // Fills the image buffer and reads no other field of the batch.
  virtual void prepare(const HostBatch& images, const Inputs& into) const = 0;
  // Writes the log-likelihood of each text for each image, in nats: f64 [ctx.batch, texts.count()]
  // on the host. It is the autoregressive sum over all tokens but padding. A text without tokens
  // has 0. Error(Exit::data) for texts that the model cannot read.
  virtual void run(nn::Context& ctx, const Inputs& inputs, const TextList& texts,
                   double* scores) = 0;
  // Returns the number of tokens of each text, without padding.
  virtual std::vector<int64_t> tokens(const TextList& texts) const = 0;
};

class CaptionScorer {
 public:
  virtual ~CaptionScorer() = default;
  virtual std::unique_ptr<ScorePass> make_score_pass() const = 0;
  virtual std::unique_ptr<PairScorePass> make_pair_score_pass() const = 0;
};

}  // namespace models
