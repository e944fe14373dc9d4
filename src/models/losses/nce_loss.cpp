// SPDX-License-Identifier: Apache-2.0
// Noise-contrastive estimation with a memory bank (ssl.md 3.7).
#include <algorithm>
#include <cmath>

#include "kernels/l2_normalize.hpp"
#include "kernels/memory_bank.hpp"
#include "kernels/nce_terms.hpp"
#include "models/losses/losses.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

class NceLoss : public EmbeddingLoss {
 public:
  NceLoss(const NceLossOptions& options, int64_t width, ParameterList& list)
      : options_(options), width_(width) {
    list.begin_block("loss");
    memory_ = list.add_state_by_rows(
        "loss/memory", {std::max<int64_t>(options.samples, 2), width},  // 0: not known yet
        ParameterList::unit_rows(ParameterList::uniform(1 / std::sqrt(double(width) / 3))));
    constant_ =
        list.add_state("loss/norm_constant", {1}, ParameterList::constant(options.norm_constant));
  }

  bool uses_index() const override { return true; }
  int64_t index_limit() const override { return options_.samples; }
  int64_t negatives() const override { return options_.negatives; }

  void run(nn::Context& ctx, const StepEmbeddings& step) const override {
    CHECK(step.views == 1 && step.widths.size() == options_.loss_weights.size(),
          "{} outputs of {} views, but loss_weights names {} outputs", step.widths.size(),
          step.views, options_.loss_weights.size());
    device::Arena::Scope scope(ctx.arena);
    const StepBatch batch(ctx, step);
    const View index = batch.gather(1, DType::i32, [&](size_t m) { return step.parts[m].index; });
    for (size_t o = 0; o < step.widths.size(); ++o) {
      device::Arena::Scope output_scope(ctx.arena);
      const Output out = forward(ctx, step, o);
      if (options_.loss == BankLoss::nce) find_constant(ctx, step, batch, out);
      for (size_t m = 0; m < step.parts.size(); ++m) backward(ctx, step, o, m, out);
      if (options_.update_output >= 0 && options_.update_output != int64_t(o)) continue;
      const View all = batch.gather(width_, DType::f32, [&](size_t m) { return out.unit[m]; });
      ctx.states->touch(memory_, index);
      ctx.run(kernels::BankUpdate{.bank = ctx.states->next(memory_),
                                  .x = all,
                                  .index = index,
                                  .count = step.examples,
                                  .width = width_,
                                  .bank_rows = options_.samples,
                                  .momentum = float(options_.momentum)});
    }
  }

 private:
  // One output of all parts.
  struct Output {
    std::vector<View> unit, inverse;  // normalised embeddings [n, width], and 1 / length [n]
    std::vector<View> logits;         // [n, 1 + negatives]
  };
  int64_t columns() const { return 1 + options_.negatives; }

  // The places of the negatives of an output: rows are `outputs * negatives` apart.
  View places(const StepEmbeddings& step, size_t output, size_t part) const {
    const View all = step.parts[part].negatives;
    const int64_t k = options_.negatives, outputs = int64_t(step.widths.size());
    return all.slice(int64_t(output) * k, all.count - (outputs - 1) * k);
  }

  Output forward(nn::Context& ctx, const StepEmbeddings& step, size_t output) const {
    Output out;
    const int64_t n = ctx.batch, outputs = int64_t(step.widths.size());
    for (size_t m = 0; m < step.parts.size(); ++m) {
      out.unit.push_back(ctx.arena.temporary(n * width_));
      out.inverse.push_back(ctx.arena.temporary(n));
      out.logits.push_back(ctx.arena.temporary(n * columns()));
      ctx.run(kernels::L2NormalizeForward{.y = out.unit[m],
                                          .x = step.parts[m].outputs[output],
                                          .inverse = out.inverse[m],
                                          .rows = n,
                                          .width = width_});
      kernels::BankScores scores{.scores = out.logits[m],
                                 .x = out.unit[m],
                                 .bank = ctx.states->next(memory_),
                                 .index = step.parts[m].index,
                                 .rows = n,
                                 .width = width_,
                                 .bank_rows = options_.samples,
                                 .stride = columns(),
                                 .scale = float(1 / options_.temperature)};
      ctx.run(scores);
      scores.scores = out.logits[m].slice(1, out.logits[m].count - 1);
      scores.index = places(step, output, m);
      scores.columns = options_.negatives;
      scores.index_stride = outputs * options_.negatives;
      ctx.run(scores);
    }
    return out;
  }

  // Sets the constant of the probabilities if it is still below 0.
  void find_constant(nn::Context& ctx, const StepEmbeddings& step, const StepBatch& batch,
                     const Output& out) const {
    device::Arena::Scope scope(ctx.arena);
    const View total = batch.sum(1, DType::f64, [&](size_t m, int64_t j, View target) {
      ctx.run(kernels::NceTotals{.total = target,
                                 .logits = batch.rows(out.logits[m], j, columns()),
                                 .rows = batch.slice(),
                                 .columns = columns()});
    });
    ctx.run(kernels::NceConstant{.constant = ctx.states->next(constant_),
                                 .total = total,
                                 .count = double(step.examples * columns()),
                                 .samples = double(options_.samples)});
  }

  void backward(nn::Context& ctx, const StepEmbeddings& step, size_t output, size_t m,
                const Output& out) const {
    device::Arena::Scope scope(ctx.arena);
    const StepEmbeddings::Part& part = step.parts[m];
    const int64_t n = ctx.batch;
    const bool nce = options_.loss == BankLoss::nce;
    ctx.run(kernels::NceTerms{.logits = out.logits[m],
                              .loss = part.loss,
                              .constant = nce ? ctx.states->next(constant_) : View{},
                              .loss_scale = ctx.loss_scale,
                              .rows = n,
                              .columns = columns(),
                              .samples = double(options_.samples),
                              .kind = nce ? kernels::NceKind::nce : kernels::NceKind::softmax,
                              .factor = float(options_.loss_weights[output]),
                              .scale = float(1 / double(step.examples)),
                              .loss_write = output ? Write::accumulate : Write::overwrite});
    const View d = ctx.arena.temporary(n * width_);
    kernels::BankGradient gradient{.dx = d,
                                   .d = out.logits[m],
                                   .bank = ctx.states->next(memory_),
                                   .index = part.index,
                                   .rows = n,
                                   .width = width_,
                                   .bank_rows = options_.samples,
                                   .stride = columns(),
                                   .scale = float(1 / options_.temperature)};
    ctx.run(gradient);
    gradient.d = out.logits[m].slice(1, out.logits[m].count - 1);
    gradient.index = places(step, output, m);
    gradient.columns = options_.negatives;
    gradient.index_stride = int64_t(step.widths.size()) * options_.negatives;
    gradient.write = Write::accumulate;
    ctx.run(gradient);
    ctx.run(kernels::L2NormalizeBackward{.dx = part.gradients[output],
                                         .dy = d,
                                         .x = part.outputs[output],
                                         .inverse = out.inverse[m],
                                         .rows = n,
                                         .width = width_});
  }

  NceLossOptions options_;
  int64_t width_;
  int memory_, constant_;
};

}  // namespace

std::unique_ptr<EmbeddingLoss> make_nce_loss(const NceLossOptions& options, int64_t width,
                                             ParameterList& list) {
  return std::make_unique<NceLoss>(options, width, list);
}

}  // namespace models
