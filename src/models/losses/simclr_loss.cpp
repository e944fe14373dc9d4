// SPDX-License-Identifier: Apache-2.0
// InfoNCE over views (ssl.md 3.1). Each rank forms the rows of its own examples against the columns
// of all. Logits are products of embeddings that are both divided by the square root of the
// temperature, so the matrix of logits is symmetric. A row therefore also holds the logits that it
// has in other rows, which its gradient needs.
#include <cmath>

#include "kernels/contrastive.hpp"
#include "kernels/l2_normalize.hpp"
#include "models/losses/losses.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

class SimclrLoss : public EmbeddingLoss {
 public:
  explicit SimclrLoss(const SimclrLossOptions& options) : options_(options) {}

  void check_batch(int64_t examples) const override {
    if (options_.negative_group > 0 && examples % options_.negative_group)
      base::fail(base::Exit::config,
                 "model.loss.negative_group = {} does not divide train.global_batch = {}, so the "
                 "last group would have fewer negatives; choose a divisor, or 0 for all",
                 options_.negative_group, examples);
  }

  void run(nn::Context& ctx, const StepEmbeddings& step) const override {
    device::Arena::Scope scope(ctx.arena);
    const StepBatch batch(ctx, step);
    const int64_t rows = ctx.batch * step.views, width = step.widths[0];
    const float scale = float(1 / std::sqrt(options_.temperature));
    std::vector<View> unit, inverse, terms;
    for (const auto& part : step.parts) {
      unit.push_back(ctx.arena.temporary(rows * width));
      inverse.push_back(ctx.arena.temporary(rows));
      terms.push_back(ctx.arena.temporary(2 * rows, DType::f64));
      ctx.run(kernels::L2NormalizeForward{.y = unit.back(),
                                          .x = part.outputs[0],
                                          .inverse = inverse.back(),
                                          .rows = rows,
                                          .width = width,
                                          .scale = scale});
    }
    const View all =
        batch.gather(step.views * width, DType::f32, [&](size_t m) { return unit[m]; });
    const View logits =
        ctx.arena.temporary(batch.slice() * step.views * step.examples * step.views);
    auto place = [&](size_t m, int64_t j) {
      multiply(ctx, batch.rows(unit[m], j, step.views * width), all, width, logits);
      return shape(step, batch, m, j);
    };
    batch.for_slices([&](size_t m, int64_t j) {
      ctx.run(kernels::ContrastiveTerms{.terms = batch.rows(terms[m], j, 2 * step.views),
                                        .loss = batch.rows(step.parts[m].loss, j, 1),
                                        .logits = logits,
                                        .shape = place(m, j)});
    });
    const View all_terms =
        batch.gather(2 * step.views, DType::f64, [&](size_t m) { return terms[m]; });
    const float mean = float(1 / double(step.examples * step.views * (step.views - 1)));
    const View d = ctx.arena.temporary(batch.slice() * step.views * width);
    batch.for_slices([&](size_t m, int64_t j) {
      ctx.run(kernels::ContrastiveGradient{.logits = logits,
                                           .terms = all_terms,
                                           .loss_scale = ctx.loss_scale,
                                           .shape = place(m, j),
                                           .scale = mean});
      ctx.run(kernels::Gemm{.c = d,
                            .a = logits,
                            .b = all,
                            .m = d.count / width,
                            .n = width,
                            .k = step.examples * step.views});
      ctx.run(kernels::L2NormalizeBackward{
          .dx = batch.rows(step.parts[m].gradients[0], j, step.views * width),
          .dy = d,
          .x = batch.rows(step.parts[m].outputs[0], j, step.views * width),
          .inverse = batch.rows(inverse[m], j, step.views),
          .rows = d.count / width,
          .width = width,
          .scale = scale});
    });
  }

 private:
  // logits = rows . all^T
  static void multiply(nn::Context& ctx, View rows, View all, int64_t width, View logits) {
    ctx.run(kernels::Gemm{.c = logits,
                          .a = rows,
                          .b = all,
                          .m = rows.count / width,
                          .n = all.count / width,
                          .k = width,
                          .trans_b = true});
  }
  kernels::ContrastiveShape shape(const StepEmbeddings& step, const StepBatch& batch, size_t m,
                                  int64_t j) const {
    return {.rows = batch.slice() * step.views,
            .columns = step.examples * step.views,
            .first = batch.first(m, j) * step.views,
            .views = step.views,
            .group = options_.negative_group};
  }

  SimclrLossOptions options_;
};

}  // namespace

std::unique_ptr<EmbeddingLoss> make_simclr_loss(const SimclrLossOptions& options) {
  return std::make_unique<SimclrLoss>(options);
}

}  // namespace models
