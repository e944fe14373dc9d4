// SPDX-License-Identifier: Apache-2.0
// Capability of a model that ranks classes with several heads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/classify_pass.hpp"

namespace models {

class ProbesPass : public ForwardPass {
 public:
  virtual void prepare(const HostBatch& batch, const Inputs& into) const = 0;
  // Writes each example's loss, and the number of classes more likely than its own, for each head:
  // f64 [heads, ctx.batch] on the host; null on the plan back end.
  virtual void run(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank) = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override { run(ctx, inputs, nullptr, nullptr); }
  // Returns the names of the heads.
  virtual std::vector<std::string> probe_names() const = 0;
};

class ProbeClassifier {
 public:
  virtual ~ProbeClassifier() = default;
  // Returns the names of the heads.
  virtual std::vector<std::string> probe_names() const = 0;
  // Makes a pass of all heads.
  virtual std::unique_ptr<ProbesPass> make_probes_pass() const = 0;
  // Make passes of the head of that name.
  virtual std::unique_ptr<ClassifyPass> make_classify_pass(const std::string& probe) const = 0;
  virtual std::unique_ptr<ClassScorePass> make_class_score_pass(const std::string& probe) const = 0;
  virtual std::unique_ptr<LogitsPass> make_logits_pass(const std::string& probe) const = 0;
  virtual int64_t num_classes() const = 0;
};

}  // namespace models
