// SPDX-License-Identifier: Apache-2.0
// Barlow Twins (ssl.md 3.2): both views are normalised together over the global batch, and their
// correlation is brought to the identity.
#include "kernels/barlow_terms.hpp"
#include "kernels/batch_norm.hpp"
#include "models/losses/losses.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

class BarlowLoss : public EmbeddingLoss {
 public:
  explicit BarlowLoss(const BarlowLossOptions& options) : options_(options) {}

  std::vector<LossTerm> terms() const override {
    return {{"loss_diagonal", "1",
             "part of the loss of this step's batch: equal features of the two views differ"},
            {"loss_off_diagonal", "1",
             "part of the loss of this step's batch: different features are correlated"}};
  }

  void run(nn::Context& ctx, const StepEmbeddings& step) const override {
    CHECK(step.views == 2, "Barlow Twins compares 2 views, not {}", step.views);
    device::Arena::Scope scope(ctx.arena);
    const Pass pass{ctx, step, StepBatch(ctx, step), step.widths[0]};
    const kernels::BatchNormValues norm = measure(pass);
    std::vector<View> h;
    for (const auto& part : step.parts) {
      h.push_back(ctx.arena.temporary(part.outputs[0].count));
      ctx.run(kernels::BatchNormForward{.y = h.back(),
                                        .x = part.outputs[0],
                                        .norm = norm,
                                        .rows = ctx.batch * 2,
                                        .columns = pass.width});
    }
    const View products = correlate(pass, h);
    const StepEmbeddings::Part& out = step.parts.front();
    const View none = ctx.arena.temporary(0);
    ctx.run(kernels::BarlowTerms{.products = products,
                                 .loss = out.loss,
                                 .diagonal = out.terms.empty() ? none : out.terms[0],
                                 .off = out.terms.empty() ? none : out.terms[1],
                                 .loss_scale = ctx.loss_scale,
                                 .width = pass.width,
                                 .examples = double(step.examples),
                                 .factor = float(options_.scale),
                                 .lambda = float(options_.lambda),
                                 .scale = float(1 / options_.gradient_divisor)});
    copy_to_other_parts(ctx, step);
    backward(pass, h, products, norm);
  }

 private:
  struct Pass {
    nn::Context& ctx;
    const StepEmbeddings& step;
    StepBatch batch;
    int64_t width;

    int64_t values() const { return 2 * step.examples; }  // of a feature
    View rows(View v, int64_t j) const { return batch.rows(v, j, 2 * width); }
    // The rows of one view of slice j of [n, 2, width]; they are 2 * width apart.
    View view(View v, int64_t j, int64_t number) const {
      const View both = rows(v, j);
      return both.slice(number * width, both.count - width);
    }
  };

  static kernels::BatchNormValues measure(const Pass& pass) {
    nn::Context& ctx = pass.ctx;
    const View mean = ctx.arena.temporary(pass.width), rstd = ctx.arena.temporary(pass.width);
    const View sums =
        pass.batch.sum(2 * pass.width, DType::f64, [&](size_t m, int64_t j, View target) {
          ctx.run(kernels::BatchNormSums{.sums = target,
                                         .x = pass.rows(pass.step.parts[m].outputs[0], j),
                                         .rows = pass.batch.slice() * 2,
                                         .columns = pass.width});
        });
    ctx.run(kernels::BatchNormStatistics{
        .mean = mean, .rstd = rstd, .sums = sums, .columns = pass.width, .count = pass.values()});
    return {.mean = mean, .rstd = rstd};
  }

  // Returns the sum over all examples of h of view 0, transposed, times h of view 1.
  static View correlate(const Pass& pass, const std::vector<View>& h) {
    return pass.batch.sum(pass.width * pass.width, DType::f32,
                          [&](size_t m, int64_t j, View target) {
                            pass.ctx.run(kernels::Gemm{.c = target,
                                                       .a = pass.view(h[m], j, 0),
                                                       .b = pass.view(h[m], j, 1),
                                                       .m = pass.width,
                                                       .n = pass.width,
                                                       .k = pass.batch.slice(),
                                                       .trans_a = true,
                                                       .lda = 2 * pass.width,
                                                       .ldb = 2 * pass.width});
                          });
  }

  // products: the derivative of the loss.
  static void backward(const Pass& pass, const std::vector<View>& h, View products,
                       const kernels::BatchNormValues& norm) {
    nn::Context& ctx = pass.ctx;
    const int64_t width = pass.width, rows = pass.batch.slice();
    pass.batch.for_slices([&](size_t m, int64_t j) {
      for (int64_t view : {0, 1})
        ctx.run(kernels::Gemm{.c = pass.view(pass.step.parts[m].gradients[0], j, view),
                              .a = pass.view(h[m], j, 1 - view),
                              .b = products,
                              .m = rows,
                              .n = width,
                              .k = width,
                              .trans_b = view == 0,
                              .lda = 2 * width,
                              .ldc = 2 * width});
    });
    const View sums = pass.batch.sum(2 * width, DType::f64, [&](size_t m, int64_t j, View target) {
      const auto& part = pass.step.parts[m];
      ctx.run(kernels::BatchNormBackwardSums{.sums = target,
                                             .dy = pass.rows(part.gradients[0], j),
                                             .x = pass.rows(part.outputs[0], j),
                                             .norm = norm,
                                             .rows = rows * 2,
                                             .columns = width});
    });
    for (const auto& part : pass.step.parts)
      ctx.run(kernels::BatchNormBackward{.dx = part.gradients[0],
                                         .dy = part.gradients[0],
                                         .x = part.outputs[0],
                                         .norm = norm,
                                         .sums = sums,
                                         .rows = ctx.batch * 2,
                                         .columns = width,
                                         .count = pass.values()});
  }

  BarlowLossOptions options_;
};

}  // namespace

std::unique_ptr<EmbeddingLoss> make_barlow_loss(const BarlowLossOptions& options) {
  return std::make_unique<BarlowLoss>(options);
}

}  // namespace models
