// SPDX-License-Identifier: Apache-2.0
// Capability of a model that ranks classes with one head or several: each head's scores of all
// classes, the loss of an image's own class, and the number of classes that are more likely.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/class_xent.hpp"
#include "models/model.hpp"

namespace models {

// The numbers that a pass computes for each head.
struct ClassRequest {
  std::vector<std::string> heads = {};  // their names; none: all heads
  bool ranks = true;                    // loss and rank of the own class; the pass reads labels
  bool scores = false;                  // of all classes
};

// Host memory for the results of a pass. Pointers are null for numbers that were not requested, and
// on the plan back end.
struct ClassNumbers {
  double* loss = nullptr;   // [heads, ctx.batch]: without label smoothing
  double* rank = nullptr;   // [heads, ctx.batch]: number of classes more likely than the own one
  float* scores = nullptr;  // [heads, ctx.batch, classes]
};

class ClassPass : public ForwardPass {
 public:
  // Fills the buffers of images and, if the pass ranks, of labels. Reads no other field.
  // Error(Exit::data) for a label that is not a class.
  virtual void prepare(const HostBatch& batch, const Inputs& into) const = 0;
  virtual void run(nn::Context& ctx, const Inputs& inputs, const ClassNumbers& to) = 0;
  void plan(nn::Context& ctx, const Inputs& inputs) override { run(ctx, inputs, {}); }
  virtual int64_t classes() const = 0;
  // Returns the loss that scores belong to. softmax: an image has one class; sigmoid: each class
  // has a probability of its own; others: a score is not a probability.
  virtual kernels::ClassLoss loss() const = 0;
};

class ClassRanker {
 public:
  virtual ~ClassRanker() = default;
  // Returns the names of the heads; none: the only head has no name.
  virtual std::vector<std::string> head_names() const { return {}; }
  virtual int64_t num_classes() const = 0;
  virtual std::unique_ptr<ClassPass> make_class_pass(const ClassRequest& request) const = 0;
};

// The part of a pass that belongs to a model.
struct ClassScorer {
  using Use = std::function<void(int64_t head, View scores)>;

  InputSpec image;                 // its buffer
  int64_t heads = 1, classes = 0;  // heads that run
  kernels::ClassLoss loss = kernels::ClassLoss::softmax;
  double beta = 1;  // of smooth_l1
  // Runs the heads, one after the other, without a backward pass. Calls `use` with the scores f32
  // [ctx.batch, classes] of each head. These are part of `kept` f32 [heads, ctx.batch, classes] or,
  // if `kept` is none, are lost after the call.
  std::function<void(nn::Context& ctx, View image, View kept, const Use& use)> score;
};
std::unique_ptr<ClassPass> make_class_pass(ClassScorer scorer, const ClassRequest& request);

}  // namespace models
