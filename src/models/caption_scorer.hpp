// SPDX-License-Identifier: Apache-2.0
// Capability of a model that scores captions: how likely is each caption, given its image?
#pragma once

#include <memory>

#include "models/model.hpp"

namespace models {

class ScorePass : public ForwardPass {
 public:
  virtual void prepare(const HostBatch& batch, const Inputs& into) const = 0;
  // The summed negative log-likelihood and the number of weighted tokens of each example,
  // autoregressive: f64 [ctx.batch] each, on the host. On paper both may be null.
  virtual void run(nn::Context& ctx, const Inputs& inputs, double* nll, double* weight) = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override { run(ctx, inputs, nullptr, nullptr); }
};

class CaptionScorer {
 public:
  virtual ~CaptionScorer() = default;
  virtual std::unique_ptr<ScorePass> make_score_pass() const = 0;
};

}  // namespace models
