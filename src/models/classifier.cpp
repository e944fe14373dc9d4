// SPDX-License-Identifier: Apache-2.0
#include "models/classifier.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "kernels/loss_sums.hpp"
#include "models/block_scope.hpp"
#include "models/trunk_embed_pass.hpp"

namespace models {

using device::DType;
// The first group of columns holds the examples whose own class is the most likely one.
using Columns = kernels::LossColumns;

ClassifierModel::ClassifierModel(const ClassifierOptions& options, const MemoryOptions& memory)
    : options_(options),
      mixing_(options.mixup, options.image_size, options.image_size),
      objective_(options, options.num_classes),
      trunk_(options.trunk.keys().make(options.image_size, options.image_size, memory.recompute,
                                       list_)) {
  const int64_t width = trunk_->width(), classes = options.num_classes;
  head_block_ = list_.begin_block("head");
  head_ = {.in = width, .out = classes};
  head_.kernel = list_.add_operand("head/kernel", {width, classes}, ParameterList::zeros());
  head_.bias = list_.add("head/bias", {classes}, ParameterList::constant(options.init_head_bias));
}

std::vector<std::string> ClassifierModel::patch_tables() const { return trunk_->patch_tables(); }

std::map<std::string, FeatureSpec> ClassifierModel::features() const {
  return {{"image",
           {.type = DType::f32,
            .shape = {options_.image_size, options_.image_size, 3},
            .key = "model.image_size",
            .pixels = true}},
          objective_.feature()};
}

double ClassifierModel::uniform_loss() const { return objective_.uniform_loss(); }

void ClassifierModel::take_bytes(const kernels::PixelRange& range) {
  bytes_ = true;
  range_ = range;
  trunk_->take_bytes(range);
}

int64_t ClassifierModel::sum_columns() const { return Columns::count; }

std::vector<Measure> ClassifierModel::measures() const { return objective_.measures(); }

std::string ClassifierModel::changing_arguments() const {
  const std::string reason = trunk_->changing_arguments();
  return reason.empty() ? objective_.changing_arguments() : reason;
}

int64_t ClassifierModel::forward_flops() const {
  const ImageGroup group = images();
  return trunk_->forward_flops({&group, 1}) + 2 * head_.in * head_.out;
}

int64_t ClassifierModel::input_flops() const {
  const ImageGroup group = images();
  return trunk_->input_flops({&group, 1});
}

// ---------------------------------------------------------------- inputs

std::vector<InputSpec> ClassifierModel::inputs(bool train) const {
  std::vector<InputSpec> specs = {{"image", bytes_ ? DType::u8 : DType::f32, pixels()}};
  auto add = [&specs](const std::vector<InputSpec>& more) {
    specs.insert(specs.end(), more.begin(), more.end());
  };
  if (train) {
    add(objective_.inputs(mixing_.on()));
    add(mixing_.inputs());
  } else {
    add({{"label", DType::i32, 1}});
  }
  return specs;
}

void ClassifierModel::take_images(const HostBatch& batch, const Inputs& into) const {
  const View image = batch.features.at("image"), buffer = into.at("image").host;
  CHECK(image.count == buffer.count && image.type == buffer.type,
        "batch of {} examples does not fit the buffers", batch.examples);
  std::memcpy(buffer.data, image.data, size_t(image.bytes()));
}

void ClassifierModel::prepare(const HostBatch& batch, bool train, base::Stream stream,
                              const Inputs& into) const {
  take_images(batch, into);
  if (!train) {
    ClassObjective::check_labels(batch, options_.num_classes, false);
    const View label = batch.features.at("label");
    std::memcpy(into.at("label").host.data, label.data, size_t(label.bytes()));
    return;
  }
  const std::vector<Mix> mixes = mixing_.draw(batch.examples, batch.first_position, stream);
  mixing_.fill(mixes, into);
  objective_.prepare(batch, mixes, mixing_, into);
}

// ---------------------------------------------------------------- passes

// Copies the host's tables to where ops read them.
void ClassifierModel::place(nn::Context& ctx, State& state) const {
  if (!state.trunk) state.trunk = trunk_->make_pass();
  const ImageGroup group = images();
  trunk_->place(ctx, {&group, 1}, *state.trunk);
}

View ClassifierModel::embed(nn::Context& ctx, View image, State& state) const {
  const ImageGroup group = images(image);
  return trunk_->forward(ctx, {&group, 1}, head_block_, *state.trunk);
}

void ClassifierModel::forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch,
                                       View sums, State& state) const {
  mixing_.check(ctx.batch);
  objective_.check_pass(ctx, global_batch);
  const int64_t n = ctx.batch, classes = head_.out, width = head_.in;
  device::Arena::Mark start = ctx.arena.low();
  place(ctx, state);
  std::vector<int32_t> first(static_cast<size_t>(n));
  std::iota(first.begin(), first.end(), 0);
  state.first = ctx.table(true, first);
  state.ones = ctx.table(true, std::vector<float>(size_t(n), 1.0f));
  ctx.repeat({n}, [&] {
    device::Arena::Scope scope(ctx.arena);
    View loss = ctx.arena.temporary(n), hits = ctx.arena.temporary(n, DType::u8),
         d = ctx.arena.temporary(n * width);
    std::optional<device::Arena::Scope> image_scope;
    if (!trunk_->reads_images_again()) image_scope.emplace(ctx.arena);
    const View image = mixing_.mixed(ctx, inputs, inputs.at("image").device, range_);
    const View pooled = embed(ctx, image, state);
    image_scope.reset();
    backward_block(ctx, head_block_, trunk_->last_block(), [&] {
      device::Arena::Scope head_scope(ctx.arena);
      View logits = ctx.arena.temporary(n * classes);
      head_.forward(ctx, pooled, n, logits);
      objective_.run(ctx, inputs, logits, global_batch, loss, hits);
      head_.backward(ctx, logits, pooled, n, d);
    });
    trunk_->backward(ctx, d, *state.trunk);
    ctx.run(kernels::LossSums{.sums = sums,
                              .loss = loss,
                              .first = state.first,
                              .weights = objective_.example_weights(inputs, state.ones),
                              .flags = hits,
                              .batch = n,
                              .length = 1,
                              .slices = ctx.slices});
  });
  ctx.arena.pop_low(start);
}

void ClassifierModel::classify(nn::Context& ctx, const Inputs& inputs, View loss, View ranks,
                               State& state, View logits) const {
  CHECK(!ctx.keep);
  const int64_t n = ctx.batch;
  device::Arena::Mark start = ctx.arena.low();
  place(ctx, state);
  {
    device::Arena::Scope scope(ctx.arena);
    View image = inputs.at("image").device;
    View pooled = embed(ctx, image, state);
    ForwardBlock weights(ctx, head_block_, -1);
    View x = logits.none() ? ctx.arena.temporary(n * head_.out) : logits;
    head_.forward(ctx, pooled, n, x);
    ctx.run(kernels::ClassXent{.logits = x,
                               .labels = inputs.at("label").device,
                               .loss = loss,
                               .ranks = ranks,
                               .rows = n,
                               .columns = head_.out,
                               .kind = options_.loss,
                               .beta = float(options_.beta),
                               .gradient = false});
  }
  ctx.arena.pop_low(start);
}

void ClassifierModel::compute_logits(nn::Context& ctx, View image, View logits,
                                     State& state) const {
  CHECK(!ctx.keep);
  const device::Arena::Mark start = ctx.arena.low();
  place(ctx, state);
  {
    device::Arena::Scope scope(ctx.arena);
    const View pooled = embed(ctx, image, state);
    ForwardBlock weights(ctx, head_block_, -1);
    head_.forward(ctx, pooled, ctx.batch, logits);
  }
  ctx.arena.pop_low(start);
}

namespace {

class ClassifierTrainPass : public TrainPass {
 public:
  explicit ClassifierTrainPass(const ClassifierModel& model) : model_(model) {}
  std::string name() const override { return "train"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(true); }
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const override {
    model_.prepare(batch, true, stream, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) override {
    model_.forward_backward(ctx, inputs, global_batch, sums, state_);
  }

 private:
  const ClassifierModel& model_;
  ClassifierModel::State state_;
};

class ModelsClassifyPass : public ClassifyPass {
 public:
  explicit ModelsClassifyPass(const ClassifierModel& model) : model_(model) {}
  std::string name() const override { return "classify"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(false); }
  void prepare(const HostBatch& batch, const Inputs& into) const override {
    model_.prepare(batch, false, {}, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank) override {
    device::Arena::Scope scope(ctx.arena);
    View losses = ctx.arena.temporary(ctx.batch),
         ranks = ctx.arena.temporary(ctx.batch, DType::i32);
    model_.classify(ctx, inputs, losses, ranks, state_);
    if (ctx.queue.kind() == device::Kind::plan) return;
    device::read_on_host(losses, ctx.queue, [&](View v) { std::copy_n(v.f32(), v.count, loss); });
    device::read_on_host(ranks, ctx.queue, [&](View v) { std::copy_n(v.i32(), v.count, rank); });
  }

 private:
  const ClassifierModel& model_;
  ClassifierModel::State state_;
};

class ModelsClassScorePass : public ClassScorePass {
 public:
  explicit ModelsClassScorePass(const ClassifierModel& model) : model_(model) {}
  std::string name() const override { return "score classes"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(false); }
  int64_t classes() const override { return model_.num_classes(); }
  void prepare(const HostBatch& batch, const Inputs& into) const override {
    model_.prepare(batch, false, {}, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, double* loss, double* rank,
           float* logits) override {
    device::Arena::Scope scope(ctx.arena);
    View losses = ctx.arena.temporary(ctx.batch),
         ranks = ctx.arena.temporary(ctx.batch, DType::i32),
         scores = ctx.arena.temporary(ctx.batch * classes());
    model_.classify(ctx, inputs, losses, ranks, state_, scores);
    if (ctx.queue.kind() == device::Kind::plan) return;
    device::read_on_host(losses, ctx.queue, [&](View v) { std::copy_n(v.f32(), v.count, loss); });
    device::read_on_host(ranks, ctx.queue, [&](View v) { std::copy_n(v.i32(), v.count, rank); });
    device::read_on_host(scores, ctx.queue, [&](View v) { std::copy_n(v.f32(), v.count, logits); });
  }

 private:
  const ClassifierModel& model_;
  ClassifierModel::State state_;
};

class ModelsLogitsPass : public LogitsPass {
 public:
  explicit ModelsLogitsPass(const ClassifierModel& model) : model_(model) {}
  std::string name() const override { return "logits"; }
  std::vector<InputSpec> inputs() const override { return {model_.inputs(false).front()}; }
  int64_t classes() const override { return model_.num_classes(); }
  Meaning meaning() const override {
    if (model_.compares_values()) return Meaning::value;
    return model_.exclusive() ? Meaning::softmax : Meaning::sigmoid;
  }
  void prepare(const HostBatch& batch, const Inputs& into) const override {
    model_.take_images(batch, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, float* logits) override {
    device::Arena::Scope scope(ctx.arena);
    const View values = ctx.arena.temporary(ctx.batch * model_.num_classes());
    model_.compute_logits(ctx, inputs.at("image").device, values, state_);
    if (ctx.queue.kind() == device::Kind::plan) return;
    device::read_on_host(values, ctx.queue, [&](View v) { std::copy_n(v.f32(), v.count, logits); });
  }

 private:
  const ClassifierModel& model_;
  ClassifierModel::State state_;
};

}  // namespace

std::unique_ptr<TrainPass> ClassifierModel::make_train_pass() const {
  return std::make_unique<ClassifierTrainPass>(*this);
}
std::unique_ptr<ClassifyPass> ClassifierModel::make_classify_pass() const {
  return std::make_unique<ModelsClassifyPass>(*this);
}
std::unique_ptr<ClassScorePass> ClassifierModel::make_class_score_pass() const {
  return std::make_unique<ModelsClassScorePass>(*this);
}
std::unique_ptr<LogitsPass> ClassifierModel::make_logits_pass() const {
  return std::make_unique<ModelsLogitsPass>(*this);
}
std::vector<Tap> ClassifierModel::taps() const {
  return trunk_->taps(options_.image_size, options_.image_size);
}
std::unique_ptr<EmbedPass> ClassifierModel::make_embed_pass(
    const std::vector<std::string>& taps) const {
  return make_trunk_embed_pass(*trunk_, inputs(false).front(), options_.image_size,
                               options_.image_size, taps);
}

Registered classifier_row() {
  return {
      "classifier", "a trunk and a linear head over classes, or of other numbers of an image",
      [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<ClassifierOptions>()); },
      [](const config::Table::Variant& options,
         const MemoryOptions& memory) -> std::unique_ptr<Model> {
        return std::make_unique<ClassifierModel>(dynamic_cast<const ClassifierOptions&>(options),
                                                 memory);
      }};
}

}  // namespace models
