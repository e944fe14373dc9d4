// SPDX-License-Identifier: Apache-2.0
// MoCo (ssl.md 3.4): each query against its own key and a queue of keys of earlier batches.
#include "kernels/class_xent.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/l2_normalize.hpp"
#include "kernels/loss_state.hpp"
#include "kernels/memory_bank.hpp"
#include "models/losses/losses.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

class MocoLoss : public SeparableLoss {
 public:
  MocoLoss(const MocoLossOptions& options, int64_t width, ParameterList& list)
      : options_(options), width_(width) {
    list.begin_block("loss");
    queue_ = list.add_state_by_rows("loss/queue", {options.queue_size, width},
                                    ParameterList::unit_rows(ParameterList::normal(1)));
    place_ = list.add_state("loss/queue_ptr", {1}, ParameterList::zeros());
  }

  void check_batch(int64_t examples) const override {
    if (options_.queue_size % examples)
      base::fail(base::Exit::config,
                 "model.loss.queue_size = {} is not a multiple of train.global_batch = {}: a batch "
                 "of keys replaces the oldest one. Choose a multiple, such as {}",
                 options_.queue_size, examples,
                 std::max<int64_t>(1, options_.queue_size / examples) * examples);
  }

  void form(nn::Context& ctx, const StepEmbeddings& step, size_t m) const override {
    CHECK(step.views == 1 && step.teacher_views == 1 && step.widths[0] == width_,
          "MoCo compares one query and one key");
    device::Arena::Scope scope(ctx.arena);
    const StepBatch batch(ctx, step);
    const StepEmbeddings::Part& part = step.parts[m];
    const float cold = float(1 / options_.temperature);
    const View queue = ctx.states->next(queue_), keys = ctx.arena.temporary(ctx.batch * width_);
    make_keys(ctx, part, keys);
    const View labels =
        ctx.table(false, std::vector<int32_t>(static_cast<size_t>(batch.slice()), 0));
    for (int64_t j = 0; j < ctx.slices; ++j) {
      device::Arena::Scope slice_scope(ctx.arena);
      const int64_t n = batch.slice();
      const View x = batch.rows(part.outputs[0], j, width_), key = batch.rows(keys, j, width_),
                 q = ctx.arena.temporary(n * width_), inverse = ctx.arena.temporary(n);
      ctx.run(kernels::L2NormalizeForward{
          .y = q, .x = x, .inverse = inverse, .rows = n, .width = width_, .scale = cold});
      const View d = ctx.arena.temporary(n * width_);
      compare(ctx, {q, key, queue, labels, batch.rows(part.loss, j, 1), d},
              float(1 / double(step.examples)));
      ctx.run(kernels::L2NormalizeBackward{.dx = batch.rows(part.gradients[0], j, width_),
                                           .dy = d,
                                           .x = x,
                                           .inverse = inverse,
                                           .rows = n,
                                           .width = width_,
                                           .scale = cold});
    }
  }

  // The keys of the batch replace the oldest ones.
  void finish(nn::Context& ctx, const StepEmbeddings& step) const override {
    device::Arena::Scope scope(ctx.arena);
    const View keys = ctx.arena.temporary(ctx.batch * width_);
    const View all = StepBatch(ctx, step).gather(width_, DType::f32, [&](size_t m) {
      make_keys(ctx, step.parts[m], keys);
      return keys;
    });
    const View places = ctx.arena.temporary(step.examples, DType::i32);
    ctx.run(kernels::QueuePlaces{.index = places,
                                 .place = ctx.states->next(place_),
                                 .size = options_.queue_size,
                                 .count = step.examples});
    ctx.states->touch(queue_, places);
    ctx.run(kernels::ScatterRows{.y = ctx.states->next(queue_),
                                 .x = all,
                                 .index = places,
                                 .rows = step.examples,
                                 .width = width_,
                                 .target_rows = options_.queue_size});
  }

 private:
  struct Rows {
    View q, key;  // [n, width]
    View queue;   // [size, width]
    View labels;  // zeros [n]
    View loss;    // [n]
    View d;       // [n, width]: becomes the gradient of q
  };

  void make_keys(nn::Context& ctx, const StepEmbeddings::Part& part, View keys) const {
    ctx.run(kernels::L2NormalizeForward{
        .y = keys, .x = part.teacher[0], .rows = ctx.batch, .width = width_});
  }

  // Computes the loss of rows of queries, and its gradient times `scale`.
  void compare(nn::Context& ctx, const Rows& r, float scale) const {
    const int64_t n = r.labels.count, size = options_.queue_size, columns = 1 + size;
    const View logits = ctx.arena.temporary(n * columns),
               negatives = logits.slice(1, logits.count - 1);
    ctx.run(kernels::BankScores{.scores = logits,
                                .x = r.q,
                                .bank = r.key,
                                .rows = n,
                                .width = width_,
                                .bank_rows = n,
                                .stride = columns});
    ctx.run(kernels::Gemm{.c = negatives,
                          .a = r.q,
                          .b = r.queue,
                          .m = n,
                          .n = size,
                          .k = width_,
                          .trans_b = true,
                          .ldc = columns});
    ctx.run(kernels::ClassXent{.logits = logits,
                               .labels = r.labels,
                               .loss = r.loss,
                               .rows = n,
                               .columns = columns,
                               .scale = scale,
                               .loss_scale = ctx.loss_scale});
    ctx.run(kernels::Gemm{
        .c = r.d, .a = negatives, .b = r.queue, .m = n, .n = width_, .k = size, .lda = columns});
    ctx.run(kernels::BankGradient{.dx = r.d,
                                  .d = logits,
                                  .bank = r.key,
                                  .rows = n,
                                  .width = width_,
                                  .bank_rows = n,
                                  .stride = columns,
                                  .write = Write::accumulate});
  }

  MocoLossOptions options_;
  int64_t width_;
  int queue_, place_;
};

}  // namespace

std::unique_ptr<EmbeddingLoss> make_moco_loss(const MocoLossOptions& options, int64_t width,
                                              ParameterList& list) {
  return std::make_unique<MocoLoss>(options, width, list);
}

}  // namespace models
