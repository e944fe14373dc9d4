// SPDX-License-Identifier: Apache-2.0
// Capability of a model that scores captions: the likelihood of each caption, given its image.
#pragma once

#include <memory>

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

class CaptionScorer {
 public:
  virtual ~CaptionScorer() = default;
  virtual std::unique_ptr<ScorePass> make_score_pass() const = 0;
};

}  // namespace models
