// SPDX-License-Identifier: Apache-2.0
// Capability of a model that ranks classes: the likelihood of an image's own class, and the number
// of classes that are more likely.
#pragma once

#include <memory>

#include "models/model.hpp"

namespace models {

class ClassifyPass : public ForwardPass {
 public:
  virtual void prepare(const HostBatch& batch, const Inputs& into) const = 0;
  // Writes each example's loss, without smoothing, and the number of classes more likely than its
  // own. Both are f64 [ctx.batch] on the host, and may be null on the plan back end.
  virtual void run(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank) = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override { run(ctx, inputs, nullptr, nullptr); }
};

class Classifier {
 public:
  virtual ~Classifier() = default;
  virtual std::unique_ptr<ClassifyPass> make_classify_pass() const = 0;
  virtual int64_t num_classes() const = 0;
};

}  // namespace models
