// SPDX-License-Identifier: Apache-2.0
#include "recorded_features.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "eval/classes/class_pass.hpp"
#include "models/embedder.hpp"

namespace golden {
namespace {

using device::DType;

constexpr int64_t kBatch = 7;  // divides no number of rows that is likely

class RecordedSource : public data::Source {
 public:
  explicit RecordedSource(const Recorded& recorded) : recorded_(recorded) {}
  int64_t size() const override { return int64_t(recorded_.y.size()); }
  std::string key(int64_t index) const override { return fmt::format("row {}", index); }
  std::string summary() const override { return ""; }
  data::Sample read(int64_t index) const override {
    data::Sample sample;
    sample["image"] = row_of(recorded_.x, index);
    data::Array label(DType::i32, {});
    *label.i32() = recorded_.y[size_t(index)];
    sample["label"] = std::move(label);
    if (!recorded_.targets.empty()) sample["targets"] = row_of(recorded_.targets, index);
    return sample;
  }
  data::Spec spec() const {
    data::Spec spec = {{"image", data::FieldSpec::array(DType::f32, {recorded_.features})},
                       {"label", data::FieldSpec::array(DType::i32, {})}};
    if (!recorded_.targets.empty())
      spec["targets"] = data::FieldSpec::array(DType::f32, {recorded_.features});
    return spec;
  }

 private:
  data::Array row_of(const std::vector<float>& rows, int64_t index) const {
    data::Array row(DType::f32, {recorded_.features});
    std::copy_n(rows.begin() + index * recorded_.features, recorded_.features, row.f32());
    return row;
  }

  const Recorded& recorded_;
};

data::Dataset data_set(const std::string& name, const Recorded& recorded) {
  auto source = std::make_unique<RecordedSource>(recorded);
  const data::Spec spec = source->spec();
  return {name, std::move(source), data::Pipeline("", spec, {})};
}

// Returns each image as its features.
class CopyPass : public models::EmbedPass {
 public:
  explicit CopyPass(int64_t features) : taps_{{"pre_logits", {features}, ""}} {}
  std::string name() const override { return "copy"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  const std::vector<models::Tap>& taps() const override { return taps_; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, const std::vector<float*>& features) override {
    const device::View image = batch_.features.at("image");
    std::copy_n(image.f32(), image.count, features.at(0));
  }

 private:
  std::vector<models::Tap> taps_;
  mutable models::HostBatch batch_;
};

// Returns each image as the scores of its classes. The evaluator forms all numbers from them.
class CopyScores : public eval::ClassPass {
 public:
  explicit CopyScores(int64_t classes) : classes_(classes) {}
  std::string name() const override { return "copy"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  int64_t classes() const override { return classes_; }
  kernels::ClassLoss loss() const override { return kernels::ClassLoss::softmax; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, const eval::ClassNumbers& to) override {
    const device::View image = batch_.features.at("image");
    std::copy_n(image.f32(), image.count, to.scores);
  }

 private:
  int64_t classes_;
  mutable models::HostBatch batch_;
};

// Runs a pass that uses no context on a batch.
void call(const models::ForwardPass& pass, const models::HostBatch& batch,
          const std::function<void(nn::Context&, const models::Inputs&)>& run) {
  device::Queue queue(device::Kind::plan);
  device::Ledger ledger;
  device::Arena arena;
  const shard::Layout layout({}, {}, {}, 1, 1);
  const std::unique_ptr<comm::Comm> alone = comm::make_plan_comm(1);
  comm::Mesh mesh = comm::make_plan_mesh({1, 1}, *alone);
  shard::WeightStore weights({layout, mesh, queue, ledger}, 0);
  nn::Context ctx{{.queue = queue, .arena = arena}, {.weights = weights}, {.batch = 1}, {}};
  pass.prepare(batch, {});
  run(ctx, {});
}
auto runs_of(const models::ForwardPass& pass) {
  return [&pass](const auto& batch, const auto& run) { call(pass, batch, run); };
}

std::map<std::string, double> values_of(const eval::Result& result) {
  return {result.values.begin(), result.values.end()};
}

}  // namespace

std::unique_ptr<eval::Evaluator> make_evaluator(const std::string& keys) {
  struct Root {
    eval::EvalOptions options;
    void bind(config::Table& t) { t.table("eval", options, ""); }
  } root;
  const std::string deck = "[eval]\ndata = \"test\"\nevery_steps = 1\n" + keys;
  config::Deck({"recorded.toml", deck, {}}, root).throw_if_any();
  return eval::make_evaluator(root.options);
}

std::map<std::string, double> evaluate(comm::Comm& world, eval::Evaluator& evaluator,
                                       const Recorded& train, const Recorded& test) {
  const data::Dataset train_set = data_set("train", train), test_set = data_set("test", test);
  CopyPass pass(train.features);
  device::Ledger ledger;
  return values_of(evaluator.run({.world = world,
                                  .dataset = test_set,
                                  .loader = {},
                                  .batch = kBatch,
                                  .pass = &pass,
                                  .forward = runs_of(pass),
                                  .further = {{"train_data", &train_set}},
                                  .ledger = &ledger}));
}

std::map<std::string, double> evaluate_scores(comm::Comm& world, eval::Evaluator& evaluator,
                                              const Recorded& test) {
  const data::Dataset set = data_set("test", test);
  CopyScores pass(test.features);
  return values_of(evaluator.run({.world = world,
                                  .dataset = set,
                                  .loader = {},
                                  .batch = kBatch,
                                  .pass = &pass,
                                  .forward = runs_of(pass)}));
}

}  // namespace golden
