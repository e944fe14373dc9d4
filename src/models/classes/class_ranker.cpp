// SPDX-License-Identifier: Apache-2.0
#include "models/classes/class_ranker.hpp"

#include <algorithm>

#include "models/classes/class_objective.hpp"

namespace models {
namespace {

using device::DType;

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

class ScoredClasses : public ClassPass {
 public:
  ScoredClasses(ClassScorer scorer, const ClassRequest& request)
      : scorer_(std::move(scorer)), ranks_(request.ranks), scores_(request.scores) {
    name_ = fmt::format("{} classes", ranks_ && scores_ ? "rank and score"
                                      : ranks_          ? "rank"
                                                        : "score");
    if (!request.heads.empty()) name_ += fmt::format(" of {}", fmt::join(request.heads, ", "));
  }
  std::string name() const override { return name_; }
  std::vector<InputSpec> inputs() const override {
    std::vector<InputSpec> specs = {scorer_.image};
    if (ranks_) specs.push_back({"label", DType::i32, 1});
    return specs;
  }
  int64_t classes() const override { return scorer_.classes; }
  kernels::ClassLoss loss() const override { return scorer_.loss; }

  void prepare(const HostBatch& batch, const Inputs& into) const override {
    copy_field(batch, "image", into);
    if (!ranks_) return;
    ClassObjective::check_labels(batch, scorer_.classes, false);
    copy_field(batch, "label", into);
  }

  void run(nn::Context& ctx, const Inputs& inputs, const ClassNumbers& to) override {
    device::Arena::Scope scope(ctx.arena);
    const int64_t n = ctx.batch, count = scorer_.heads * n;
    const View losses = ranks_ ? ctx.arena.temporary(count) : View{},
               ranks = ranks_ ? ctx.arena.temporary(count, DType::i32) : View{},
               kept = scores_ ? ctx.arena.temporary(count * scorer_.classes) : View{};
    scorer_.score(ctx, inputs.at("image").device, kept, [&](int64_t head, View scores) {
      if (ranks_)
        ctx.run(kernels::ClassXent{.logits = scores,
                                   .labels = inputs.at("label").device,
                                   .loss = losses.slice(head * n, n),
                                   .ranks = ranks.slice(head * n, n),
                                   .rows = n,
                                   .columns = scorer_.classes,
                                   .kind = scorer_.loss,
                                   .beta = float(scorer_.beta),
                                   .gradient = false});
    });
    if (ranks_) {
      copy_out(ctx, losses, to.loss);
      copy_out(ctx, ranks, to.rank);
    }
    if (scores_) copy_out(ctx, kept, to.scores);
  }

 private:
  ClassScorer scorer_;
  bool ranks_, scores_;
  std::string name_;
};

}  // namespace

std::unique_ptr<ClassPass> make_class_pass(ClassScorer scorer, const ClassRequest& request) {
  return std::make_unique<ScoredClasses>(std::move(scorer), request);
}

}  // namespace models
