// SPDX-License-Identifier: Apache-2.0
#include "eval/classes/class_pass.hpp"

#include <algorithm>

#include "models/classes/class_objective.hpp"

namespace eval {
namespace {

using device::DType;
using device::View;

// Copies values to the host, unless the queue only counts.
template <class T>
void copy_out(nn::Context& ctx, View values, T* to) {
  if (ctx.queue.kind() == device::Kind::plan) return;
  device::read_on_host(values, ctx.queue, [&](View v) {
    if (v.type == DType::i32)
      std::copy_n(v.i32(), v.count, to);
    else
      std::copy_n(v.f32(), v.count, to);
  });
}

class PassOfLogits : public ClassPass {
 public:
  PassOfLogits(models::ClassLogits logits, const ClassRequest& request)
      : logits_(std::move(logits)), ranks_(request.ranks), scores_(request.scores) {
    name_ = fmt::format("{} classes", ranks_ && scores_ ? "rank and score"
                                      : ranks_          ? "rank"
                                                        : "score");
    if (!request.heads.empty()) name_ += fmt::format(" of {}", fmt::join(request.heads, ", "));
  }
  std::string name() const override { return name_; }
  std::vector<models::InputSpec> inputs() const override {
    std::vector<models::InputSpec> specs = {logits_.image};
    if (ranks_) specs.push_back({"label", DType::i32, 1, "label"});
    return specs;
  }
  int64_t classes() const override { return logits_.classes; }
  kernels::ClassLoss loss() const override { return logits_.loss; }

  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    if (ranks_) models::ClassObjective::check_labels(batch, logits_.classes, false);
  }

  void run(nn::Context& ctx, const models::Inputs& inputs, const ClassNumbers& to) override {
    device::Arena::Scope scope(ctx.arena);
    const int64_t n = ctx.batch, count = logits_.heads * n;
    const View losses = ranks_ ? ctx.arena.temporary(count) : View{},
               ranks = ranks_ ? ctx.arena.temporary(count, DType::i32) : View{},
               kept = scores_ ? ctx.arena.temporary(count * logits_.classes) : View{};
    logits_.run(ctx, inputs.at("image").device, kept, [&](int64_t head, View scores) {
      if (ranks_)
        ctx.run(kernels::ClassXent{.logits = scores,
                                   .labels = inputs.at("label").device,
                                   .loss = losses.slice(head * n, n),
                                   .ranks = ranks.slice(head * n, n),
                                   .rows = n,
                                   .columns = logits_.classes,
                                   .kind = logits_.loss,
                                   .beta = float(logits_.beta),
                                   .gradient = false});
    });
    if (ranks_) {
      copy_out(ctx, losses, to.loss);
      copy_out(ctx, ranks, to.rank);
    }
    if (scores_) copy_out(ctx, kept, to.scores);
  }

 private:
  models::ClassLogits logits_;
  bool ranks_, scores_;
  std::string name_;
};

}  // namespace

std::unique_ptr<ClassPass> make_class_pass(const models::ClassRanker& ranker,
                                           const ClassRequest& request) {
  return std::make_unique<PassOfLogits>(ranker.logits(request.heads), request);
}

}  // namespace eval
