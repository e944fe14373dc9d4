// SPDX-License-Identifier: Apache-2.0
// DeepCluster-v2 (ssl.md 3.8): every view of an image finds the cluster of the image. A memory
// holds an embedding of each sample. Spherical k-means of the memory gives new centroids at the
// start of every epoch. Within the epoch, a sample's row of the memory does not change before the
// sample's visit, so its cluster is computed at the visit.
//
// All ranks hold the memory and compute the same k-means, so nothing is exchanged, and the bits do
// not depend on the mesh. The published code fills the memory in a pass of its own; here the first
// epoch does it, without a loss.
#include <numeric>

#include "kernels/l2_normalize.hpp"
#include "kernels/memory_bank.hpp"
#include "kernels/sinkhorn.hpp"
#include "kernels/target_xent.hpp"
#include "kernels/token_mean.hpp"
#include "kernels/transpose_positions.hpp"
#include "models/block_scope.hpp"
#include "models/losses/losses.hpp"
#include "models/losses/step_batch.hpp"

namespace models {
namespace {

using device::DType;

// Rows of the memory that k-means reads at a time.
constexpr int64_t kBlockRows = 1024;
// Factor of a cluster's old centroid, which is added to the cluster's sum. The addition rounds away
// if the cluster has members. A cluster without members keeps its centroid.
constexpr float kOldPart = 1e-9f;

class DeepclusterLoss : public SeparableLoss {
 public:
  DeepclusterLoss(const DeepclusterLossOptions& options, int64_t width, ParameterList& list)
      : options_(options), width_(width) {
    block_ = list.begin_block("loss");
    for (size_t a = 0; a < options.memory_views.size(); ++a)
      memories_.push_back(list.add_state_by_rows(fmt::format("loss/memory{}", a),
                                                 {options.samples, width}, ParameterList::zeros()));
    for (size_t h = 0; h < options.clusters.size(); ++h)
      centroids_.push_back(list.add_state(fmt::format("loss/centroids{}", h),
                                          {options.clusters[h], width}, ParameterList::zeros()));
  }

  std::vector<int64_t> clusters() const override { return options_.clusters; }
  View cluster_scores(nn::Context& ctx, size_t set, std::span<const View> outputs) const override {
    const View scores = ctx.arena.temporary(ctx.batch * options_.clusters[set]);
    ForwardBlock weights(ctx, block_, -1);
    ctx.run(kernels::Gemm{.c = scores,
                          .a = outputs[0],
                          .b = ctx.weight(centroids_[set]),
                          .m = ctx.batch,
                          .n = options_.clusters[set],
                          .k = width_,
                          .trans_b = true});
    return scores;
  }

  bool uses_index() const override { return true; }
  int64_t index_limit() const override { return options_.samples; }

  void form(nn::Context& ctx, const StepEmbeddings& step, size_t m) const override {
    if (m == 0) begin_epoch(ctx, step.examples);
    const StepEmbeddings::Part& part = step.parts[m];
    if (epoch(ctx.step, step.examples) == 0) {  // the memory is being filled
      ctx.run(kernels::Fill{.y = part.loss, .value = 0});
      ctx.run(kernels::Fill{.y = part.gradients[0], .value = 0});
      if (ctx.queue.kind() != device::Kind::plan) return;
    }
    find_clusters(ctx, step, part);
  }

  void finish(nn::Context& ctx, const StepEmbeddings& step) const override {
    device::Arena::Scope scope(ctx.arena);
    const StepBatch batch(ctx, step);
    const View index = batch.gather(1, DType::i32, [&](size_t m) { return step.parts[m].index; });
    for (size_t a = 0; a < memories_.size(); ++a) {
      device::Arena::Scope view_scope(ctx.arena);
      std::vector<int32_t> places;
      for (int64_t b = 0; b < ctx.batch; ++b)
        places.push_back(int32_t(b * step.views + options_.memory_views[a]));
      const View rows = ctx.table(false, places), mine = ctx.arena.temporary(ctx.batch * width_);
      const View all = batch.gather(width_, DType::f32, [&](size_t m) {
        ctx.run(kernels::GatherRows{.y = mine,
                                    .x = step.parts[m].outputs[0],
                                    .index = rows,
                                    .rows = ctx.batch,
                                    .width = width_,
                                    .source_rows = ctx.batch * step.views});
        return mine;
      });
      ctx.states->touch(memories_[a], index);
      ctx.run(kernels::BankUpdate{.bank = ctx.states->next(memories_[a]),
                                  .x = all,
                                  .index = index,
                                  .count = step.examples,
                                  .width = width_,
                                  .bank_rows = options_.samples});
    }
  }

 private:
  // Workspace of assigning some rows to clusters.
  struct Room {
    View scores, q, one_hot;  // f32 [rows, clusters]
    View most;                // f32 [1]: upper bound of cosines
    Room(nn::Context& ctx, int64_t rows, int64_t clusters)
        : scores(ctx.arena.temporary(rows * clusters)),
          q(ctx.arena.temporary(rows * clusters)),
          one_hot(ctx.arena.temporary(rows * clusters)),
          most(ctx.arena.temporary(1)) {}
  };

  // Returns the number of the epoch that holds the first example of a step, from 0.
  int64_t epoch(int64_t step, int64_t examples) const {
    return (step - 1) * examples / options_.samples;
  }

  View memory_of(nn::Context& ctx, size_t head) const {
    return ctx.states->next(memories_[head % memories_.size()]);
  }

  // centroids [clusters, width]; sets room.one_hot to 1 at the nearest centroid of each row.
  void assign(nn::Context& ctx, View rows, View centroids, const Room& room) const {
    const int64_t n = rows.count / width_, clusters = centroids.count / width_;
    const View scores = room.scores.slice(0, n * clusters), q = room.q.slice(0, n * clusters);
    ctx.run(kernels::Gemm{.c = scores,
                          .a = rows,
                          .b = centroids,
                          .m = n,
                          .n = clusters,
                          .k = width_,
                          .trans_b = true});
    ctx.run(kernels::SinkhornStart{.q = q,
                                   .scores = scores,
                                   .maxima = room.most,
                                   .rows = n,
                                   .columns = clusters,
                                   .epsilon = 0.1f});
    ctx.run(kernels::SinkhornScale{.q = q,
                                   .targets = room.one_hot.slice(0, n * clusters),
                                   .rows = n,
                                   .columns = clusters,
                                   .samples = 1,
                                   .target_rows = n,
                                   .target_stride = clusters,
                                   .hard = true});
  }

  // Clusters the memory at the first step of an epoch. Every step allocates the workspace, so that
  // plans include it.
  void begin_epoch(nn::Context& ctx, int64_t examples) const {
    const bool due = ctx.step > 1 && epoch(ctx.step, examples) != epoch(ctx.step - 1, examples);
    for (size_t h = 0; h < centroids_.size(); ++h) {
      device::Arena::Scope scope(ctx.arena);
      const int64_t clusters = options_.clusters[h];
      const Room room(ctx, std::min(kBlockRows, options_.samples), clusters);
      const View sums = ctx.arena.temporary(clusters * width_),
                 first = ctx.arena.temporary(clusters, DType::i32);
      if (!due) continue;
      const std::vector<int32_t> chosen = rows_of_centroids(
          ctx.dropout.sub(base::stream_id("centroids")).sub(h), clusters, options_.samples);
      device::upload(first, chosen.data(), ctx.queue);
      ctx.run(kernels::Fill{.y = room.most, .value = 1});
      ctx.run(kernels::GatherRows{.y = ctx.states->next(centroids_[h]),
                                  .x = memory_of(ctx, h),
                                  .index = first,
                                  .rows = clusters,
                                  .width = width_,
                                  .source_rows = options_.samples});
      for (int64_t i = 0; i < options_.kmeans_iterations; ++i) move_centroids(ctx, h, room, sums);
    }
  }

  // Moves each centroid to the mean direction of its rows of the memory.
  void move_centroids(nn::Context& ctx, size_t head, const Room& room, View sums) const {
    const View memory = memory_of(ctx, head), centroids = ctx.states->next(centroids_[head]);
    const int64_t clusters = options_.clusters[head];
    kernels::L2NormalizeForward unit{
        .y = sums, .x = centroids, .rows = clusters, .width = width_, .scale = kOldPart};
    ctx.run(unit);
    for (int64_t begin = 0; begin < options_.samples; begin += kBlockRows) {
      const int64_t n = std::min(kBlockRows, options_.samples - begin);
      const View rows = memory.slice(begin * width_, n * width_);
      assign(ctx, rows, centroids, room);
      ctx.run(kernels::Gemm{.c = sums,
                            .a = room.one_hot.slice(0, n * clusters),
                            .b = rows,
                            .m = clusters,
                            .n = width_,
                            .k = n,
                            .trans_a = true,
                            .write = Write::accumulate});
    }
    unit.y = centroids;
    unit.x = sums;
    unit.scale = 1;
    ctx.run(unit);
  }

  // Fills loss and gradient of a part.
  void find_clusters(nn::Context& ctx, const StepEmbeddings& step,
                     const StepEmbeddings::Part& part) const {
    device::Arena::Scope scope(ctx.arena);
    const int64_t n = ctx.batch, rows = n * step.views, heads = int64_t(centroids_.size());
    const View unit = ctx.arena.temporary(rows * width_), d = ctx.arena.temporary(rows * width_),
               inverse = ctx.arena.temporary(rows), losses = ctx.arena.temporary(heads * rows),
               turned = ctx.arena.temporary(heads * rows);
    // Unit rows divided by the temperature.
    const float scale = float(1 / options_.temperature);
    ctx.run(kernels::L2NormalizeForward{.y = unit,
                                        .x = part.outputs[0],
                                        .inverse = inverse,
                                        .rows = rows,
                                        .width = width_,
                                        .scale = scale});
    for (int64_t h = 0; h < heads; ++h) find_in(ctx, step, part, size_t(h), unit, d, losses);
    ctx.run(kernels::TransposePositions{
        .y = turned, .x = losses, .batch = 1, .positions = heads, .channels = rows});
    ctx.run(kernels::TokenMeanForward{
        .y = part.loss, .x = turned, .batch = n, .rows = step.views * heads, .width = 1});
    ctx.run(kernels::L2NormalizeBackward{.dx = part.gradients[0],
                                         .dy = d,
                                         .x = part.outputs[0],
                                         .inverse = inverse,
                                         .rows = rows,
                                         .width = width_,
                                         .scale = scale});
  }

  // Writes the losses of the rows to one set of clusters, and writes or adds their gradient to d.
  void find_in(nn::Context& ctx, const StepEmbeddings& step, const StepEmbeddings::Part& part,
               size_t head, View unit, View d, View losses) const {
    device::Arena::Scope scope(ctx.arena);
    const View centroids = ctx.states->next(centroids_[head]);
    const int64_t n = ctx.batch, views = step.views, rows = n * views,
                  clusters = options_.clusters[head], slice = n / ctx.slices;
    const View mine = ctx.arena.temporary(n * width_),
               scores = ctx.arena.temporary(rows * clusters),
               targets = ctx.arena.temporary(rows * clusters),
               clusters_of = ctx.arena.temporary(n * clusters);
    ctx.run(kernels::GatherRows{.y = mine,
                                .x = memory_of(ctx, head),
                                .index = part.index,
                                .rows = n,
                                .width = width_,
                                .source_rows = options_.samples});
    Room room(ctx, slice, clusters);
    ctx.run(kernels::Fill{.y = room.most, .value = 1});
    const int64_t of_slice = slice * views;
    for (int64_t j = 0; j < ctx.slices; ++j) {
      room.one_hot = clusters_of.slice(j * slice * clusters, slice * clusters);
      assign(ctx, mine.slice(j * slice * width_, slice * width_), centroids, room);
      ctx.run(kernels::Gemm{.c = scores.slice(j * of_slice * clusters, of_slice * clusters),
                            .a = unit.slice(j * of_slice * width_, of_slice * width_),
                            .b = centroids,
                            .m = of_slice,
                            .n = clusters,
                            .k = width_,
                            .trans_b = true});
    }
    std::vector<int32_t> example(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) example[size_t(r)] = int32_t(r / views);
    ctx.run(kernels::GatherRows{.y = targets,
                                .x = clusters_of,
                                .index = ctx.table(false, example),
                                .rows = rows,
                                .width = clusters,
                                .source_rows = n});
    const auto parts = double(step.examples * views) * double(centroids_.size());
    ctx.run(kernels::TargetXent{.logits = scores,
                                .targets = targets,
                                .loss = losses.slice(int64_t(head) * rows, rows),
                                .rows = rows,
                                .columns = clusters,
                                .kind = kernels::ClassLoss::softmax,
                                .scale = float(1 / parts),
                                .loss_scale = ctx.loss_scale});
    for (int64_t j = 0; j < ctx.slices; ++j)
      ctx.run(kernels::Gemm{.c = d.slice(j * of_slice * width_, of_slice * width_),
                            .a = scores.slice(j * of_slice * clusters, of_slice * clusters),
                            .b = centroids,
                            .m = of_slice,
                            .n = width_,
                            .k = clusters,
                            .write = head > 0 ? Write::accumulate : Write::overwrite});
  }

  DeepclusterLossOptions options_;
  int64_t width_;
  int block_ = -1;
  std::vector<int> memories_, centroids_;
};

}  // namespace

std::vector<int32_t> rows_of_centroids(const base::Stream& stream, int64_t count, int64_t samples) {
  std::vector<int32_t> rows(static_cast<size_t>(samples));
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t left = uint64_t(samples - i), draw = stream.bits64(uint64_t(i)) % left;
    std::swap(rows[size_t(i)], rows[size_t(i) + size_t(draw)]);
  }
  rows.resize(size_t(count));
  return rows;
}

std::unique_ptr<EmbeddingLoss> make_deepcluster_loss(const DeepclusterLossOptions& options,
                                                     int64_t width, ParameterList& list) {
  return std::make_unique<DeepclusterLoss>(options, width, list);
}

}  // namespace models
