// SPDX-License-Identifier: Apache-2.0
// DINO (ssl.md 3.6): the network's scores of every view against the sharpened, centred scores that
// the teacher gives to another view.
#include "kernels/loss_state.hpp"
#include "kernels/sinkhorn.hpp"
#include "kernels/view_xent.hpp"
#include "models/losses/losses.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

class DinoLoss : public SeparableLoss {
 public:
  DinoLoss(const DinoLossOptions& options, int64_t width, ParameterList& list)
      : options_(options), width_(width) {
    list.begin_block("loss");
    center_ = list.add_state("loss/center", {1, width}, ParameterList::zeros());
  }

  void form(nn::Context& ctx, const StepEmbeddings& step, size_t m) const override {
    const int64_t seen = step.teacher_views;
    CHECK(seen == int64_t(options_.teacher_views.size()) && step.widths[0] == width_,
          "the teacher sees {} views, not {}", seen, options_.teacher_views.size());
    device::Arena::Scope scope(ctx.arena);
    const StepEmbeddings::Part& part = step.parts[m];
    const View targets = ctx.arena.temporary(part.teacher[0].count);
    ctx.run(kernels::SoftTargets{.y = targets,
                                 .x = part.teacher[0],
                                 .centre = ctx.states->next(center_),
                                 .rows = ctx.batch * seen,
                                 .columns = width_,
                                 .temperature = float(options_.teacher_temperature_at(ctx.step))});
    kernels::ViewXent xent{.loss = part.loss,
                           .gradient = part.gradients[0],
                           .scores = part.outputs[0],
                           .targets = targets,
                           .loss_scale = ctx.loss_scale,
                           .examples = ctx.batch,
                           .views = step.views,
                           .columns = width_,
                           .target_count = seen,
                           .temperature = float(options_.student_temperature),
                           .scale = float(1 / double(step.examples))};
    for (size_t a = 0; a < options_.teacher_views.size(); ++a)
      xent.views_of_targets[a] = int32_t(options_.teacher_views[a]);
    ctx.run(xent);
  }

  // The centre moves to the mean of the teacher's scores.
  void finish(nn::Context& ctx, const StepEmbeddings& step) const override {
    const int64_t seen = step.teacher_views;
    device::Arena::Scope scope(ctx.arena);
    const StepBatch batch(ctx, step);
    const View totals = batch.sum(width_, DType::f64, [&](size_t m, int64_t j, View target) {
      ctx.run(kernels::ColumnTotals{.totals = target,
                                    .x = batch.rows(step.parts[m].teacher[0], j, seen * width_),
                                    .rows = batch.slice() * seen,
                                    .columns = width_});
    });
    ctx.run(kernels::MovingMean{.mean = ctx.states->next(center_),
                                .totals = totals,
                                .count = double(step.examples * seen),
                                .momentum = float(options_.center_momentum)});
  }

 private:
  DinoLossOptions options_;
  int64_t width_;
  int center_;
};

}  // namespace

std::unique_ptr<EmbeddingLoss> make_dino_loss(const DinoLossOptions& options, int64_t width,
                                              ParameterList& list) {
  return std::make_unique<DinoLoss>(options, width, list);
}

}  // namespace models
