// SPDX-License-Identifier: Apache-2.0
// The sigmoid loss of pairs (siglip.md 2). Each rank compares its own images with all texts, for
// their losses and gradients, and its own texts with all images, for their gradients alone. So no
// gradient is exchanged, and every sum has one order on all meshes.

#include "base/elementary.hpp"
#include "kernels/l2_normalize.hpp"
#include "kernels/pair_sigmoid.hpp"
#include "models/block_scope.hpp"
#include "models/losses/losses.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

class SigmoidLoss : public EmbeddingLoss {
 public:
  SigmoidLoss(const SigmoidLossOptions& options, ParameterList& list)
      : block_(list.begin_block("loss")) {
    t_ = list.add("t", {1}, ParameterList::constant(base::math::log(options.temperature_init)));
    b_ = list.add("b", {1}, ParameterList::constant(options.bias_init));
  }

  std::vector<int> parameters() const override { return {t_, b_}; }
  int block() const override { return block_; }

  void run(nn::Context& ctx, const StepEmbeddings& step) const override {
    CHECK(step.widths.size() == 2 && step.widths[0] == step.widths[1] && step.views == 1,
          "pairs of embeddings of one width");
    device::Arena::Scope scope(ctx.arena);
    ForwardBlock weights(ctx, block_, -1);
    const StepBatch batch(ctx, step);
    const Side images = normalise(ctx, step, batch, 0), texts = normalise(ctx, step, batch, 1);
    batch.for_slices([&](size_t m, int64_t j) {
      compare(ctx, step, batch, {m, j, 0}, images, texts);
      compare(ctx, step, batch, {m, j, 1}, texts, images);
    });
  }

 private:
  // The embeddings of the images, or of the texts, divided by their lengths.
  struct Side {
    std::vector<View> unit, inverse;  // by pass: [n, width], and one over their lengths, [n]
    View all;                         // of all examples, [examples, width]
  };
  // A slice of a pass, and the output that it compares with the other one.
  struct Place {
    size_t pass;
    int64_t slice;
    size_t output;
  };

  static Side normalise(nn::Context& ctx, const StepEmbeddings& step, const StepBatch& batch,
                        size_t output) {
    const int64_t width = step.widths[output];
    Side side;
    for (const auto& part : step.parts) {
      side.unit.push_back(ctx.arena.temporary(ctx.batch * width));
      side.inverse.push_back(ctx.arena.temporary(ctx.batch));
      ctx.run(kernels::L2NormalizeForward{.y = side.unit.back(),
                                          .x = part.outputs[output],
                                          .inverse = side.inverse.back(),
                                          .rows = ctx.batch,
                                          .width = width});
    }
    side.all = batch.gather(width, DType::f32, [&](size_t m) { return side.unit[m]; });
    return side;
  }

  // Computes the gradients of a slice of `own` and, for images, losses and the parameters' parts.
  void compare(nn::Context& ctx, const StepEmbeddings& step, const StepBatch& batch,
               const Place& at, const Side& own, const Side& other) const {
    device::Arena::Scope scope(ctx.arena);
    const int64_t width = step.widths[at.output], rows = batch.slice();
    const StepEmbeddings::Part& part = step.parts[at.pass];
    const View cosines = ctx.arena.temporary(rows * step.examples),
               d = ctx.arena.temporary(rows * width);
    ctx.run(kernels::Gemm{.c = cosines,
                          .a = batch.rows(own.unit[at.pass], at.slice, width),
                          .b = other.all,
                          .m = rows,
                          .n = step.examples,
                          .k = width,
                          .trans_b = true});
    kernels::PairSigmoid pairs{.cosines = cosines,
                               .t = ctx.weight(t_),
                               .b = ctx.weight(b_),
                               .loss_scale = ctx.loss_scale,
                               .rows = rows,
                               .columns = step.examples,
                               .first = batch.first(at.pass, at.slice),
                               .scale = float(1 / double(step.examples))};
    if (at.output == 0) {
      pairs.loss = batch.rows(part.loss, at.slice, 1);
      pairs.dt = batch.rows(part.parameters[0], at.slice, 1);
      pairs.db = batch.rows(part.parameters[1], at.slice, 1);
    }
    ctx.run(pairs);
    ctx.run(kernels::Gemm{
        .c = d, .a = cosines, .b = other.all, .m = rows, .n = width, .k = step.examples});
    ctx.run(
        kernels::L2NormalizeBackward{.dx = batch.rows(part.gradients[at.output], at.slice, width),
                                     .dy = d,
                                     .x = batch.rows(part.outputs[at.output], at.slice, width),
                                     .inverse = batch.rows(own.inverse[at.pass], at.slice, 1),
                                     .rows = rows,
                                     .width = width});
  }

  int block_, t_ = -1, b_ = -1;
};

}  // namespace

std::unique_ptr<EmbeddingLoss> make_sigmoid_loss(const SigmoidLossOptions& options,
                                                 ParameterList& list) {
  return std::make_unique<SigmoidLoss>(options, list);
}

}  // namespace models
