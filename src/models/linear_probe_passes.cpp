// SPDX-License-Identifier: Apache-2.0
// The passes of linear probes: training, and those of evaluators and predictions, with all probes
// or with one.
#include <algorithm>

#include "models/linear_probe.hpp"

namespace models {
namespace {

using device::DType;

class LinearProbeTrainPass : public TrainPass {
 public:
  explicit LinearProbeTrainPass(const LinearProbeModel& model)
      : model_(model), state_(model.make_state()) {}
  std::string name() const override { return "train"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, base::Stream, const Inputs& into) const override {
    model_.prepare(batch, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) override {
    model_.forward_backward(ctx, inputs, global_batch, sums, state_);
  }

 private:
  const LinearProbeModel& model_;
  LinearProbeModel::State state_;
};

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

// Runs one probe, or all, behind the interface `Pass`.
template <class Pass>
class ProbePass : public Pass {
 public:
  ProbePass(const LinearProbeModel& model, const std::string& work, const std::string& probe)
      : model_(model),
        state_(model.make_state(probe)),
        name_(fmt::format("{} with {}", work, probe.empty() ? "all probes" : probe)) {}
  std::string name() const override { return name_; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, const Inputs& into) const override {
    model_.prepare(batch, into);
  }

 protected:
  // Writes loss and rank of each head and example and, on request, the scores of all classes.
  void classify(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank,
                bool gives_scores = false, float* scores = nullptr) {
    device::Arena::Scope scope(ctx.arena);
    const int64_t count = int64_t(state_.heads.size()) * ctx.batch;
    const View losses = ctx.arena.temporary(count), ranks = ctx.arena.temporary(count, DType::i32);
    const View all = gives_scores ? ctx.arena.temporary(count * model_.num_classes()) : View{};
    model_.classify(ctx, inputs, losses, ranks, state_, all);
    copy_out(ctx, losses, loss);
    copy_out(ctx, ranks, rank);
    if (gives_scores) copy_out(ctx, all, scores);
  }

  const LinearProbeModel& model_;
  LinearProbeModel::State state_;

 private:
  std::string name_;
};

class LinearProbesPass : public ProbePass<ProbesPass> {
 public:
  explicit LinearProbesPass(const LinearProbeModel& model) : ProbePass(model, "classify", "") {}
  std::vector<std::string> probe_names() const override { return model_.probe_names(); }
  void run(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank) override {
    classify(ctx, inputs, loss, rank);
  }
};

class OneProbePass : public ProbePass<ClassifyPass> {
 public:
  OneProbePass(const LinearProbeModel& model, const std::string& probe)
      : ProbePass(model, "classify", probe) {}
  void run(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank) override {
    classify(ctx, inputs, loss, rank);
  }
};

class OneProbeScorePass : public ProbePass<ClassScorePass> {
 public:
  OneProbeScorePass(const LinearProbeModel& model, const std::string& probe)
      : ProbePass(model, "score classes", probe) {}
  int64_t classes() const override { return model_.num_classes(); }
  void run(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank,
           float* logits) override {
    classify(ctx, inputs, loss, rank, true, logits);
  }
};

class OneProbeLogitsPass : public ProbePass<LogitsPass> {
 public:
  OneProbeLogitsPass(const LinearProbeModel& model, const std::string& probe)
      : ProbePass(model, "logits", probe) {}
  std::vector<InputSpec> inputs() const override { return {model_.inputs().front()}; }
  int64_t classes() const override { return model_.num_classes(); }
  Meaning meaning() const override { return Meaning::softmax; }
  void prepare(const HostBatch& batch, const Inputs& into) const override {
    model_.take_images(batch, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, float* logits) override {
    device::Arena::Scope scope(ctx.arena);
    const View scores = ctx.arena.temporary(ctx.batch * classes());
    model_.score(ctx, inputs.at("image").device, state_, scores, {});
    copy_out(ctx, scores, logits);
  }
};

}  // namespace

std::unique_ptr<TrainPass> LinearProbeModel::make_train_pass() const {
  return std::make_unique<LinearProbeTrainPass>(*this);
}
std::unique_ptr<ProbesPass> LinearProbeModel::make_probes_pass() const {
  return std::make_unique<LinearProbesPass>(*this);
}
std::unique_ptr<ClassifyPass> LinearProbeModel::make_classify_pass(const std::string& probe) const {
  return std::make_unique<OneProbePass>(*this, probe);
}
std::unique_ptr<ClassScorePass> LinearProbeModel::make_class_score_pass(
    const std::string& probe) const {
  return std::make_unique<OneProbeScorePass>(*this, probe);
}
std::unique_ptr<LogitsPass> LinearProbeModel::make_logits_pass(const std::string& probe) const {
  return std::make_unique<OneProbeLogitsPass>(*this, probe);
}

}  // namespace models
