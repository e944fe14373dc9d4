// SPDX-License-Identifier: Apache-2.0
// The pass of evaluators that rank classes. From the logits of a model's heads it forms the loss of
// an image's own class, and the number of classes that are more likely.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/classes/class_ranker.hpp"

namespace eval {

// The numbers that a pass computes for each head.
struct ClassRequest {
  std::vector<std::string> heads = {};  // their names; none: all heads
  bool ranks = true;                    // loss and rank of the own class; the pass reads labels
  bool scores = false;                  // of all classes: the logits
};

// Host memory for the results of a pass. Pointers are null for numbers that were not requested, and
// on the plan back end.
struct ClassNumbers {
  double* loss = nullptr;   // [heads, ctx.batch]: without label smoothing
  double* rank = nullptr;   // [heads, ctx.batch]: number of classes more likely than the own one
  float* scores = nullptr;  // [heads, ctx.batch, classes]
};

class ClassPass : public models::ForwardPass {
 public:
  // Its batches have images and, if it ranks, labels. prepare: Error(Exit::data) for a label that
  // is not a class.
  virtual void run(nn::Context& ctx, const models::Inputs& inputs, const ClassNumbers& to) = 0;
  void plan(nn::Context& ctx, const models::Inputs& inputs) override { run(ctx, inputs, {}); }
  virtual int64_t classes() const = 0;
  virtual kernels::ClassLoss loss() const = 0;  // see models::ClassLogits
};
std::unique_ptr<ClassPass> make_class_pass(const models::ClassRanker& ranker,
                                           const ClassRequest& request);

}  // namespace eval
