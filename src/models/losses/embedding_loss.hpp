// SPDX-License-Identifier: Apache-2.0
// Losses of embeddings over the whole global batch (ssl.md 3). A loss reads the head's outputs for
// all examples of a step. It writes the loss of each example and the gradients of this rank's rows.
// These include the rows' part as other examples' keys, so no gradient is reduced.
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

// The embeddings of one step. Rows are example-major: all views of an example stand together.
struct StepEmbeddings {
  // This rank's examples of one pass. All passes have equally many: n = Context::batch.
  struct Part {
    int64_t first = 0;            // position of the first example in the global batch
    std::vector<View> outputs;    // of the head: f32 [n, views, width of the output]
    std::vector<View> gradients;  // result, same shapes; those that need none are none
    // The teacher's outputs, f32 [n, teacher views, width]: for losses with a teacher.
    std::vector<View> teacher;
    View loss;  // result, f32 [n]: their sum over all examples / `examples` is the loss of the step
    std::vector<View> terms;  // result, f32 [n] for each of EmbeddingLoss::terms(), or empty
    View index;               // i32 [n]: place of the example in its data set, if uses_index()
    View negatives;  // i32 [n, outputs, K]: places in the data set, if negatives() is K > 0
    View labels;     // i32 [n], if label() names a field
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
  // True if the loss reads Part::index; places lie in [0, index_limit()).
  virtual bool uses_index() const { return false; }
  virtual int64_t index_limit() const { return 0; }
  // Returns the number of negatives that each output of an example needs, or 0.
  virtual int64_t negatives() const { return 0; }
  // Returns the label that Part::labels holds, or null.
  virtual const MadeLabel* label() const { return nullptr; }
  // Returns the number of clusters of each set to which embeddings belong; none: there are none.
  virtual std::vector<int64_t> clusters() const { return {}; }
  // Returns how near rows of the head's outputs are to the clusters of a set, f32 [ctx.batch,
  // clusters]; the largest score is that of a row's own cluster. One row of an example, in a
  // forward pass. May be a temporary.
  virtual View cluster_scores(nn::Context& /*ctx*/, size_t /*set*/,
                              std::span<const View> /*outputs*/) const {
    return {};
  }
  // Throws Error(Exit::config) if the loss cannot have a global batch of so many examples. The
  // message names the key, its value and the way out.
  virtual void check_batch(int64_t /*examples*/) const {}
  // Computes losses and gradients. The gradients are those of the loss of the step, times
  // ctx.loss_scale. Reads and changes the states of the loss (ctx.states), and counts steps by
  // ctx.step. ctx is that of the last pass.
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
  // Computes the losses and gradients of a part from the present states.
  virtual void form(nn::Context& ctx, const StepEmbeddings& step, size_t part) const = 0;
  // Changes the states, when all parts were formed.
  virtual void finish(nn::Context& ctx, const StepEmbeddings& step) const = 0;
};

}  // namespace models
