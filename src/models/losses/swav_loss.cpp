// SPDX-License-Identifier: Apache-2.0
// SwAV (ssl.md 3.5): every view predicts how other views of its example are assigned to prototypes.
// Each rank assigns its own examples. The sums over all samples, which balance the prototypes,
// follow the tree. Samples are the examples of the batch and of the queue. Both are cut into the
// same number of slices.
#include <cmath>

#include "kernels/sinkhorn.hpp"
#include "kernels/view_xent.hpp"
#include "models/block_scope.hpp"
#include "models/losses/losses.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

class SwavLoss : public EmbeddingLoss {
 public:
  SwavLoss(const SwavLossOptions& options, bool from_teacher, const Head& head,
           ParameterList& list);

  void check_batch(int64_t examples) const override {
    if (options_.queue_length % examples)
      base::fail(base::Exit::config,
                 "model.loss.queue_length = {} is not a multiple of train.global_batch = {}: a "
                 "batch replaces the oldest one. Choose a multiple, or 0 for no queue",
                 options_.queue_length, examples);
  }

  void run(nn::Context& ctx, const StepEmbeddings& step) const override;

  std::vector<int64_t> clusters() const override {
    std::vector<int64_t> out;
    for (const Prototypes& p : prototypes_) out.push_back(p.count);
    return out;
  }
  View cluster_scores(nn::Context&, size_t set, std::span<const View> outputs) const override {
    return outputs[1 + set];
  }

 private:
  // A set of prototypes, with the numbers of its parameters.
  struct Prototypes {
    int64_t count;
    int weight;             // [count, width]
    int first_scores = -1;  // constant [assigned views, queue length, count]
  };
  // One assignment: what a step assigns from view `view` to prototypes number `head`.
  struct Task {
    const StepEmbeddings& step;
    const StepBatch& batch;
    size_t head, number;  // of the prototypes, and of the view among the assigned ones
    bool queue;
    View targets;  // f32 [parts, n, assigned views, prototypes]
  };
  // Samples of one slice: rows of the batch, then rows of the queue.
  struct Samples {
    View q;              // [rows + queued, prototypes]
    View scores;         // f32 [rows, prototypes], rows are `stride` elements apart
    View queued_scores;  // f32 [queued, prototypes]
    int64_t rows, queued, stride;
  };

  int64_t assigned() const { return int64_t(options_.assign_views.size()); }
  bool uses_queue(const nn::Context& ctx) const {
    return options_.queue_length > 0 && ctx.step > options_.queue_start_steps;
  }
  void assign(nn::Context& ctx, const Task& task) const;
  std::vector<Samples> samples_of(nn::Context& ctx, const Task& task) const;
  View queued_scores(nn::Context& ctx, const Task& task, int64_t first, int64_t rows) const;
  View maxima_of(nn::Context& ctx, const std::vector<Samples>& samples, int64_t columns) const;
  void predict(nn::Context& ctx, const StepEmbeddings& step, size_t head,
               const View& targets) const;
  void enqueue(nn::Context& ctx, const StepEmbeddings& step, const StepBatch& batch) const;

  SwavLossOptions options_;
  bool from_teacher_;
  int64_t width_;
  int head_block_, block_ = -1, queue_ = -1;
  std::vector<Prototypes> prototypes_;
};

SwavLoss::SwavLoss(const SwavLossOptions& options, bool from_teacher, const Head& head,
                   ParameterList& list)
    : options_(options),
      from_teacher_(from_teacher),
      width_(head.widths().at(0)),
      head_block_(head.block()) {
  const std::vector<int64_t> widths = head.widths();
  const std::vector<int> weights = head.prototypes();
  CHECK(!weights.empty() && widths.size() == weights.size() + 1,
        "swav needs a head that returns the embedding and the scores of prototypes");
  for (size_t h = 0; h < weights.size(); ++h)
    prototypes_.push_back({.count = widths[h + 1], .weight = weights[h]});
  if (options.queue_length == 0) return;
  block_ = list.begin_block("loss");
  queue_ = list.add_state("loss/local_emb_queue", {assigned(), options.queue_length, width_},
                          ParameterList::uniform(1 / std::sqrt(double(width_) / 3)));
  for (size_t h = 0; options.random_first_scores && h < prototypes_.size(); ++h)
    prototypes_[h].first_scores = list.add_frozen(
        fmt::format("loss/local_queue{}", h),
        {assigned(), options.queue_length, prototypes_[h].count}, ParameterList::uniform(1));
}

void SwavLoss::run(nn::Context& ctx, const StepEmbeddings& step) const {
  const int64_t views = from_teacher_ ? step.teacher_views : step.views;
  for (const int64_t v : options_.assign_views)
    CHECK(v < step.views, "view {} of {} cannot be assigned", v, step.views);
  CHECK(!from_teacher_ || views == assigned(), "the teacher sees {} views, not {}", views,
        assigned());
  device::Arena::Scope scope(ctx.arena);
  const StepBatch batch(ctx, step);
  for (size_t h = 0; h < prototypes_.size(); ++h) {
    device::Arena::Scope head_scope(ctx.arena);
    const View targets = ctx.arena.temporary(int64_t(step.parts.size()) * ctx.batch * assigned() *
                                             prototypes_[h].count);
    for (size_t i = 0; i < options_.assign_views.size(); ++i)
      assign(ctx, {step, batch, h, i, uses_queue(ctx), targets});
    predict(ctx, step, h, targets);
  }
  for (const auto& part : step.parts)
    if (!part.gradients[0].none()) ctx.run(kernels::Fill{.y = part.gradients[0], .value = 0});
  if (uses_queue(ctx)) enqueue(ctx, step, batch);
}

// Fills the targets of one assigned view.
void SwavLoss::assign(nn::Context& ctx, const Task& task) const {
  device::Arena::Scope scope(ctx.arena);
  const int64_t columns = prototypes_[task.head].count;
  const std::vector<Samples> samples = samples_of(ctx, task);
  const View maxima = maxima_of(ctx, samples, columns);
  for (const Samples& s : samples) {
    kernels::SinkhornStart start{.q = s.q.slice(0, s.rows * columns),
                                 .scores = s.scores,
                                 .maxima = maxima,
                                 .rows = s.rows,
                                 .columns = columns,
                                 .stride = s.stride,
                                 .epsilon = float(options_.epsilon)};
    ctx.run(start);
    if (s.queued == 0) continue;
    start.q = s.q.slice(s.rows * columns, s.queued * columns);
    start.scores = s.queued_scores;
    start.rows = s.queued;
    start.stride = 0;
    ctx.run(start);
  }
  // With 0 iterations, one round without totals divides only the rows.
  const int64_t rounds = std::max<int64_t>(1, options_.sinkhorn_iterations);
  for (int64_t round = 0; round < rounds; ++round) {
    device::Arena::Scope round_scope(ctx.arena);
    View totals;
    if (options_.sinkhorn_iterations > 0)
      totals = task.batch.sum(columns, DType::f64, [&](size_t m, int64_t j, View target) {
        const Samples& s = samples[m * size_t(ctx.slices) + size_t(j)];
        ctx.run(kernels::ColumnTotals{
            .totals = target, .x = s.q, .rows = s.rows + s.queued, .columns = columns});
      });
    for (size_t k = 0; k < samples.size(); ++k) {
      const Samples& s = samples[k];
      kernels::SinkhornScale scale{
          .q = s.q,
          .totals = totals,
          .rows = s.rows + s.queued,
          .columns = columns,
          .samples = task.step.examples + (task.queue ? options_.queue_length : 0),
          .first = round == 0,
          .hard = ctx.step <= options_.hard_assignment_steps};
      if (round + 1 == rounds) {
        const int64_t stride = assigned() * columns,
                      begin = int64_t(k) * s.rows * stride + int64_t(task.number) * columns;
        scale.targets = task.targets.slice(begin, (s.rows - 1) * stride + columns);
        scale.target_rows = s.rows;
        scale.target_stride = stride;
      }
      ctx.run(scale);
    }
  }
}

// Returns the samples of all slices of this rank. Their q has no values yet.
std::vector<SwavLoss::Samples> SwavLoss::samples_of(nn::Context& ctx, const Task& task) const {
  std::vector<Samples> out;
  const int64_t columns = prototypes_[task.head].count, rows = task.batch.slice();
  const int64_t queued = task.queue ? options_.queue_length / task.step.examples * rows : 0;
  const int64_t views = from_teacher_ ? task.step.teacher_views : task.step.views,
                view = from_teacher_ ? int64_t(task.number) : options_.assign_views[task.number];
  const DType type = options_.double_precision ? DType::f64 : DType::f32;
  task.batch.for_slices([&](size_t m, int64_t j) {
    const auto& part = task.step.parts[m];
    const View scores = task.batch.rows(
        (from_teacher_ ? part.teacher : part.outputs)[1 + task.head], j, views * columns);
    Samples s{.q = ctx.arena.temporary((rows + queued) * columns, type),
              .scores = scores.slice(view * columns, scores.count - (views - 1) * columns),
              .queued_scores = {},
              .rows = rows,
              .queued = queued,
              .stride = views * columns};
    if (queued > 0)
      s.queued_scores = queued_scores(ctx, task, task.batch.first(m, j) / rows * queued, queued);
    out.push_back(s);
  });
  return out;
}

// Returns the scores of some rows of the queue, f32 [rows, prototypes].
View SwavLoss::queued_scores(nn::Context& ctx, const Task& task, int64_t first,
                             int64_t rows) const {
  const Prototypes& p = prototypes_[task.head];
  const View scores = ctx.arena.temporary(rows * p.count);
  const int64_t row = int64_t(task.number) * options_.queue_length + first;
  // The published code fills the scores of the queue at the end of a step, for the next one.
  if (p.first_scores >= 0 && ctx.step == options_.queue_start_steps + 1) {
    ForwardBlock weights(ctx, block_, -1);
    ctx.run(kernels::Copy{.y = scores,
                          .x = ctx.weight(p.first_scores).slice(row * p.count, rows * p.count)});
    return scores;
  }
  nn::Context teacher = from_teacher_ ? ctx.of_teacher() : ctx;
  ForwardBlock weights(teacher, head_block_, -1);
  device::Arena::Scope scope(ctx.arena);
  const View queue = ctx.states->next(queue_).slice(row * width_, rows * width_);
  ctx.run(kernels::Gemm{.c = scores,
                        .a = ctx.operand(queue),
                        .b = teacher.weight_operand(p.weight),
                        .m = rows,
                        .n = p.count,
                        .k = width_,
                        .trans_b = true});
  return scores;
}

// Returns the largest scores of all slices of the step, on all ranks.
View SwavLoss::maxima_of(nn::Context& ctx, const std::vector<Samples>& samples,
                         int64_t columns) const {
  const int64_t each = samples[0].queued > 0 ? 2 : 1;
  const View mine = ctx.arena.temporary(int64_t(samples.size()) * each);
  for (size_t k = 0; k < samples.size(); ++k) {
    const Samples& s = samples[k];
    ctx.run(kernels::FiniteMaximum{.maximum = mine.slice(int64_t(k) * each, 1),
                                   .x = s.scores,
                                   .rows = s.rows,
                                   .columns = columns,
                                   .stride = s.stride});
    if (s.queued > 0)
      ctx.run(kernels::FiniteMaximum{.maximum = mine.slice(int64_t(k) * each + 1, 1),
                                     .x = s.queued_scores,
                                     .rows = s.queued,
                                     .columns = columns});
  }
  const View all = ctx.arena.temporary(mine.count * ctx.group->ranks());
  ctx.group->gather(mine, all, ctx.queue);
  return all;
}

void SwavLoss::predict(nn::Context& ctx, const StepEmbeddings& step, size_t head,
                       const View& targets) const {
  const int64_t columns = prototypes_[head].count, count = ctx.batch * assigned() * columns;
  for (size_t m = 0; m < step.parts.size(); ++m) {
    const auto& part = step.parts[m];
    kernels::ViewXent xent{.loss = part.loss,
                           .gradient = part.gradients[1 + head],
                           .scores = part.outputs[1 + head],
                           .targets = targets.slice(int64_t(m) * count, count),
                           .loss_scale = ctx.loss_scale,
                           .examples = ctx.batch,
                           .views = step.views,
                           .columns = columns,
                           .target_count = assigned(),
                           .temperature = float(options_.temperature),
                           .factor = float(1 / double(prototypes_.size())),
                           .scale = float(1 / double(step.examples)),
                           .loss_write = head ? Write::accumulate : Write::overwrite};
    for (size_t a = 0; a < options_.assign_views.size(); ++a)
      xent.views_of_targets[a] = int32_t(options_.assign_views[a]);
    ctx.run(xent);
  }
}

// Puts the embeddings of the assigned views in front of the queue; the oldest ones drop out.
void SwavLoss::enqueue(nn::Context& ctx, const StepEmbeddings& step, const StepBatch& batch) const {
  const int64_t views = from_teacher_ ? step.teacher_views : step.views, n = ctx.batch,
                kept = (options_.queue_length - step.examples) * width_;
  for (size_t i = 0; i < options_.assign_views.size(); ++i) {
    device::Arena::Scope scope(ctx.arena);
    const int64_t view = from_teacher_ ? int64_t(i) : options_.assign_views[i];
    std::vector<int32_t> places;
    for (int64_t b = 0; b < n; ++b) places.push_back(int32_t(b * views + view));
    const View index = ctx.table(false, places), mine = ctx.arena.temporary(n * width_),
               old = ctx.arena.temporary(kept);
    const View fresh = batch.gather(width_, DType::f32, [&](size_t m) {
      const auto& part = step.parts[m];
      ctx.run(kernels::GatherRows{.y = mine,
                                  .x = (from_teacher_ ? part.teacher : part.outputs)[0],
                                  .index = index,
                                  .rows = n,
                                  .width = width_,
                                  .source_rows = n * views});
      return mine;
    });
    const View queue = ctx.states->next(queue_).slice(int64_t(i) * options_.queue_length * width_,
                                                      options_.queue_length * width_);
    ctx.run(kernels::Copy{.y = old, .x = queue.slice(0, kept)});
    ctx.run(kernels::Copy{.y = queue.slice(fresh.count, kept), .x = old});
    ctx.run(kernels::Copy{.y = queue.slice(0, fresh.count), .x = fresh});
  }
}

}  // namespace

std::unique_ptr<EmbeddingLoss> make_swav_loss(const SwavLossOptions& options, bool from_teacher,
                                              const Head& head, ParameterList& list) {
  return std::make_unique<SwavLoss>(options, from_teacher, head, list);
}

}  // namespace models
