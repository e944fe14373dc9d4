// SPDX-License-Identifier: Apache-2.0
// Losses of embeddings over the whole global batch (ssl.md 3). A loss reads the head's outputs for
// all examples of a step. It writes the loss of each example and the gradients of this rank's rows.
// The gradients already include each row's effect on other examples' losses, so nothing is reduced
// afterwards.
//
// Everything is defined over examples in the order of the global batch, never over ranks. Sums over
// examples follow the tree of level "mesh", and products see one slice (design 3.4).
//
// A model forms the embeddings of all passes of a step, calls `run` once, and runs its passes
// backward with the gradients. All ranks must call in the same order.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "nn/context.hpp"

namespace models {

using device::View;
using kernels::Write;

// The embeddings of one step. Rows are example-major: all views of an example are consecutive.
struct StepEmbeddings {
  // This rank's examples of one pass. All passes have the same number: n = Context::batch.
  struct Part {
    int64_t first = 0;            // position of the first example in the global batch
    std::vector<View> outputs;    // of the head: f32 [n, views, width of the output]
    std::vector<View> gradients;  // result, same shapes; none if not needed
    // The teacher's outputs, f32 [n, teacher views, width]: for losses with a teacher.
    std::vector<View> teacher;
    View loss;  // result, f32 [n]: their sum over all examples / `examples` is the loss of the step
    std::vector<View> terms;  // result, f32 [n] for each of EmbeddingLoss::terms(), or empty
    View index;               // i32 [n]: place of the example in its data set, if uses_index()
    View negatives;  // i32 [n, outputs, K]: places in the data set, if negatives() is K > 0
    View labels;     // i32 [n], if label() names a field
    // Result, f32 [n] for each of EmbeddingLoss::parameters(): each example's part of its gradient.
    std::vector<View> parameters;
  };
  int64_t examples = 0;                         // of the global batch
  int64_t views = 0, teacher_views = 0;         // of an example
  std::vector<int64_t> widths, teacher_widths;  // of the outputs
  std::vector<Part> parts;                      // one per pass of the step
};

// A part of a loss that is reported as a measure: its mean over the examples of the step.
struct LossTerm {
  std::string name, unit, doc;
};

// A label that preprocessing makes for each example.
struct MadeLabel {
  std::string field;  // i32 [], in [0, classes)
  int64_t classes = 0;
  std::string key;      // key of the deck that sets their number
  std::string made_by;  // the op that makes it, for messages
};

class EmbeddingLoss {
 public:
  virtual ~EmbeddingLoss() = default;
  // Returns the parts of the loss that Part::terms receives.
  virtual std::vector<LossTerm> terms() const { return {}; }
  // True if the loss reads Part::index; places are in [0, index_limit()).
  virtual bool uses_index() const { return false; }
  virtual int64_t index_limit() const { return 0; }
  // Returns the number of negatives that each output of an example needs, or 0.
  virtual int64_t negatives() const { return 0; }
  // Returns the label that Part::labels holds, or null.
  virtual const MadeLabel* label() const { return nullptr; }
  // Returns the trained parameters of the loss, of one element each, which fill its block(). `run`
  // writes each example's part of their gradients. Passes add the parts up
  // (add_parameter_gradients), because blocks of gradients are open only in passes.
  virtual std::vector<int> parameters() const { return {}; }
  virtual int block() const { return -1; }
  // Returns the number of clusters of each set to which embeddings belong; empty: no clusters.
  virtual std::vector<int64_t> clusters() const { return {}; }
  // Returns how near rows of the head's outputs are to the clusters of a set, f32 [ctx.batch,
  // clusters]. The largest score of a row belongs to its own cluster. For forward passes with one
  // row per example. The result may be a temporary.
  virtual View cluster_scores(nn::Context& /*ctx*/, size_t /*set*/,
                              std::span<const View> /*outputs*/) const {
    return {};
  }
  // Throws Error(Exit::config) if the loss cannot have a global batch of this size. The message
  // names the key, its value and a remedy.
  virtual void check_batch(int64_t /*examples*/) const {}
  // Computes losses and gradients. The gradients are those of the step's loss, times
  // ctx.loss_scale. Reads and changes the states of the loss (ctx.states), and counts steps by
  // ctx.step. ctx: the context of the last pass.
  virtual void run(nn::Context& ctx, const StepEmbeddings& step) const = 0;
};

// A loss whose examples read no other example of their step, only states. Each pass of a step forms
// its part and runs backward at once, so no pass runs forward twice.
class SeparableLoss : public EmbeddingLoss {
 public:
  void run(nn::Context& ctx, const StepEmbeddings& step) const override {
    for (size_t m = 0; m < step.parts.size(); ++m) form(ctx, step, m);
    finish(ctx, step);
  }
  // Computes the losses and gradients of a part from the current states.
  virtual void form(nn::Context& ctx, const StepEmbeddings& step, size_t part) const = 0;
  // Updates the states after all parts were formed.
  virtual void finish(nn::Context& ctx, const StepEmbeddings& step) const = 0;
};

}  // namespace models
