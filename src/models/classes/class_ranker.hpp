// SPDX-License-Identifier: Apache-2.0
// Capability of a model that ranks classes with one head or several: their logits. Losses, ranks
// and shares follow from them (eval/classes/class_pass.hpp).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/class_xent.hpp"
#include "models/model.hpp"

namespace models {

// The forward pass of some heads, with the state of that pass.
struct ClassLogits {
  using Use = std::function<void(int64_t head, View logits)>;

  InputSpec image;                 // the buffer that it reads
  int64_t heads = 1, classes = 0;  // heads that run
  // The loss that logits belong to. softmax: an image has one class; sigmoid: each class has a
  // probability of its own; others: a logit is a number, not a score.
  kernels::ClassLoss loss = kernels::ClassLoss::softmax;
  double beta = 1;  // of smooth_l1
  // Runs the heads, one after the other. Calls `use` with the logits f32 [ctx.batch, classes] of
  // each head. These are part of `kept` f32 [heads, ctx.batch, classes] or, if `kept` is none, are
  // lost after the call.
  std::function<void(nn::Context& ctx, View image, View kept, const Use& use)> run;
};

class ClassRanker {
 public:
  virtual ~ClassRanker() = default;
  // Returns the names of the heads; none: the only head has no name.
  virtual std::vector<std::string> head_names() const { return {}; }
  virtual int64_t num_classes() const = 0;
  // heads: names, in the wanted order; none: all heads.
  virtual ClassLogits logits(const std::vector<std::string>& heads) const = 0;
};

}  // namespace models
