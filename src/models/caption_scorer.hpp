// SPDX-License-Identifier: Apache-2.0
// Capabilities of models that score texts, given an image: by the likelihood of a caption, or by
// the cosine of two embeddings.
#pragma once

#include <memory>
#include <vector>

#include "models/model.hpp"

namespace models {

class ScorePass : public ForwardPass {
 public:
  // Writes each example's sum of negative log-likelihoods, autoregressive, and its number of
  // weighted tokens: f64 [ctx.batch] each, on the host. Both may be null on the plan back end.
  virtual void run(nn::Context& ctx, const Inputs& inputs, double* nll, double* weight) = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override { run(ctx, inputs, nullptr, nullptr); }
};

// Texts as ids [texts, length]. The model's pad id follows the last token of each text.
struct TextList {
  int64_t length = 0;
  std::vector<int32_t> ids;
  int64_t group = 1;  // consecutive texts that describe one thing, as the prompts of a class do

  int64_t count() const { return length ? int64_t(ids.size()) / length : 0; }
};

// The score of a pair: the log-likelihood of the text, in nats, or the cosine of both embeddings.
enum class PairScore { log_likelihood, cosine };

// Scores every image of a batch against every text of a list (cappa.md 2.3, `score`). Each image is
// encoded once. A score depends on the image and the list alone, not on the batch.
class PairScorePass : public ForwardPass {
 public:
  virtual PairScore kind() const { return PairScore::log_likelihood; }
  // Returns the number of scores of an image: one per text, or for cosines one per group.
  int64_t columns(const TextList& texts) const {
    return kind() == PairScore::cosine ? texts.count() / texts.group : texts.count();
  }
  // Starts a series of runs with one list of texts and the same weights. Until the next call, a
  // pass may keep what it has computed from the texts.
  virtual void begin() {}
  // Writes the scores of each image, f64 [ctx.batch, columns(texts)], on the host.
  // Error(Exit::data) for texts that the model cannot read.
  // A log-likelihood is the autoregressive sum over all tokens but padding, 0 for a text without
  // tokens. A cosine compares the image's vector with the mean direction of a group of texts.
  virtual void run(nn::Context& ctx, const Inputs& inputs, const TextList& texts,
                   double* scores) = 0;
  // Returns the number of tokens of each text, without padding. Cosines need none.
  virtual std::vector<int64_t> tokens(const TextList& texts) const = 0;
};

// Capability of a model that scores pairs of images and texts.
class PairScorer {
 public:
  virtual ~PairScorer() = default;
  virtual std::unique_ptr<PairScorePass> make_pair_score_pass() const = 0;
};

// Capability of a model that computes likelihoods of captions.
class CaptionScorer : public PairScorer {
 public:
  virtual std::unique_ptr<ScorePass> make_score_pass() const = 0;
};

}  // namespace models
