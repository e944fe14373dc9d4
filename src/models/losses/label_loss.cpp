// SPDX-License-Identifier: Apache-2.0
// Cross-entropy with a label that preprocessing made, such as the angle by which an image was
// turned (ssl.md 3.3).
#include "kernels/class_xent.hpp"
#include "kernels/rank_hits.hpp"
#include "models/losses/losses.hpp"

namespace models {
namespace {

using device::DType;

class LabelLoss : public SeparableLoss {
 public:
  explicit LabelLoss(const MadeLabel& label) : label_(label) {}

  const MadeLabel* label() const override { return &label_; }
  std::vector<LossTerm> terms() const override {
    return {{"accuracy", "1", "share of this step's examples whose label has the largest score"}};
  }

  void form(nn::Context& ctx, const StepEmbeddings& step, size_t m) const override {
    const StepEmbeddings::Part& part = step.parts[m];
    CHECK(step.views == 1 && step.widths.front() == label_.classes,
          "{} rows of {} scores for a label of {} classes", step.views, step.widths.front(),
          label_.classes);
    device::Arena::Scope scope(ctx.arena);
    const View ranks = ctx.arena.temporary(ctx.batch, DType::i32);
    ctx.run(kernels::Copy{.y = part.gradients[0], .x = part.outputs[0]});
    ctx.run(kernels::ClassXent{.logits = part.gradients[0],
                               .labels = part.labels,
                               .loss = part.loss,
                               .ranks = ranks,
                               .rows = ctx.batch,
                               .columns = label_.classes,
                               .scale = float(1 / double(step.examples)),
                               .loss_scale = ctx.loss_scale});
    ctx.run(kernels::RankHits{
        .hits = part.terms[0], .ranks = ranks, .rows = ctx.batch, .count = 1, .k = {1}});
  }
  void finish(nn::Context&, const StepEmbeddings&) const override {}

 private:
  MadeLabel label_;
};

}  // namespace

std::unique_ptr<EmbeddingLoss> make_label_loss(const MadeLabel& label) {
  return std::make_unique<LabelLoss>(label);
}

}  // namespace models
