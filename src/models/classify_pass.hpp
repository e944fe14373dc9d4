// SPDX-License-Identifier: Apache-2.0
// Capability of a model that ranks classes: how likely is an image's own class, and how many others
// are more likely?
#pragma once

#include <memory>

#include "models/model.hpp"

namespace models {

class ClassifyPass : public ForwardPass {
 public:
  virtual void prepare(const HostBatch& batch, const Inputs& into) const = 0;
  // The loss of each example, without smoothing, and the number of classes that are more likely
  // than its own: f64 [ctx.batch] each, on the host. On paper both may be null.
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
