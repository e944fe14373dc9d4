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

// A pass that gives the scores of all classes, too.
class ClassScorePass : public ForwardPass {
 public:
  virtual void prepare(const HostBatch& batch, const Inputs& into) const = 0;
  // Does the work of ClassifyPass::run, and writes the logits, f32 [ctx.batch, classes] on the
  // host.
  virtual void run(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank,
                   float* logits) = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override {
    run(ctx, inputs, nullptr, nullptr, nullptr);
  }
  virtual int64_t classes() const = 0;
};

// Computes the logits of images without labels.
class LogitsPass : public ForwardPass {
 public:
  // Fills the image buffer and reads no other field of the batch.
  virtual void prepare(const HostBatch& batch, const Inputs& into) const = 0;
  // Writes f32 [ctx.batch, classes()] on the host; null on the plan back end.
  virtual void run(nn::Context& ctx, const Inputs& inputs, float* logits) = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override { run(ctx, inputs, nullptr); }
  virtual int64_t classes() const = 0;
  // The meaning of a logit. softmax: an example has one class; sigmoid: each class is for itself;
  // value: it is no probability.
  enum class Meaning { softmax, sigmoid, value };
  virtual Meaning meaning() const = 0;
};

class Classifier {
 public:
  virtual ~Classifier() = default;
  virtual std::unique_ptr<ClassifyPass> make_classify_pass() const = 0;
  virtual std::unique_ptr<ClassScorePass> make_class_score_pass() const = 0;
  virtual std::unique_ptr<LogitsPass> make_logits_pass() const = 0;
  virtual int64_t num_classes() const = 0;
};

}  // namespace models
