// SPDX-License-Identifier: Apache-2.0
#include "models/classes/classifier.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "kernels/loss_sums.hpp"
#include "models/block_scope.hpp"
#include "models/trunks/embed_pass.hpp"

namespace models {

using device::DType;
// The first group of columns holds the examples whose own class is the most likely one.
using Columns = kernels::LossColumns;

ClassifierModel::ClassifierModel(const ClassifierOptions& options, const MemoryOptions& memory)
    : options_(options),
      mixing_(options.mixup, options.image_size, options.image_size),
      objective_(options, options.num_classes),
      encoder_(options.trunk.keys(), options.image_size, options.image_size, memory.recompute,
               list_) {
  const int64_t width = encoder_.width(), classes = options.num_classes;
  head_block_ = list_.begin_block("head");
  head_ = {.in = width, .out = classes};
  head_.kernel = list_.add_operand("head/kernel", {width, classes}, ParameterList::zeros());
  head_.bias = list_.add("head/bias", {classes}, ParameterList::constant(options.init_head_bias));
}

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
  encoder_.trunk().take_bytes(range);
}

int64_t ClassifierModel::sum_columns() const { return Columns::count; }

std::vector<Measure> ClassifierModel::measures() const { return objective_.measures(); }

std::string ClassifierModel::changing_arguments() const {
  const std::string reason = encoder_.trunk().changing_arguments();
  return reason.empty() ? objective_.changing_arguments() : reason;
}

int64_t ClassifierModel::forward_flops() const {
  const ImageGroup group = images();
  return encoder_.forward_flops({&group, 1}) + 2 * head_.in * head_.out;
}

int64_t ClassifierModel::input_flops() const {
  const ImageGroup group = images();
  return encoder_.trunk().input_flops({&group, 1});
}

// ---------------------------------------------------------------- inputs

InputSpec ClassifierModel::image_input() const {
  return {"image", bytes_ ? DType::u8 : DType::f32, pixels()};
}

std::vector<InputSpec> ClassifierModel::inputs() const {
  std::vector<InputSpec> specs = {image_input()};
  for (const auto& more : {objective_.inputs(mixing_.on()), mixing_.inputs()})
    specs.insert(specs.end(), more.begin(), more.end());
  return specs;
}

void ClassifierModel::prepare(const HostBatch& batch, base::Stream stream,
                              const Inputs& into) const {
  copy_field(batch, "image", into);
  const std::vector<Mix> mixes = mixing_.draw(batch.examples, batch.first_position, stream);
  mixing_.fill(mixes, into);
  objective_.prepare(batch, mixes, mixing_, into);
}

// ---------------------------------------------------------------- passes

// Copies the host's tables to where ops read them.
void ClassifierModel::place(nn::Context& ctx, State& state) const {
  if (!state.encoder.trunk) state.encoder = encoder_.make_pass();
  const ImageGroup group = images();
  encoder_.place(ctx, {&group, 1}, state.encoder);
}

View ClassifierModel::embed(nn::Context& ctx, View image, State& state) const {
  const ImageGroup group = images(image);
  return encoder_.forward(ctx, {&group, 1}, head_block_, state.encoder);
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
    if (!encoder_.trunk().reads_images_again()) image_scope.emplace(ctx.arena);
    const View image = mixing_.mixed(ctx, inputs, inputs.at("image").device, range_);
    const View pooled = embed(ctx, image, state);
    image_scope.reset();
    backward_block(ctx, head_block_, encoder_.last_block(), [&] {
      device::Arena::Scope head_scope(ctx.arena);
      View logits = ctx.arena.temporary(n * classes);
      head_.forward(ctx, pooled, n, logits);
      objective_.run(ctx, inputs, logits, global_batch, loss, hits);
      head_.backward(ctx, logits, pooled, n, d);
    });
    encoder_.backward(ctx, d, state.encoder);
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

void ClassifierModel::score(nn::Context& ctx, View image, View kept, State& state,
                            const ClassScorer::Use& use) const {
  CHECK(!ctx.keep);
  const device::Arena::Mark start = ctx.arena.low();
  place(ctx, state);
  {
    device::Arena::Scope scope(ctx.arena);
    const View pooled = embed(ctx, image, state);
    ForwardBlock weights(ctx, head_block_, -1);
    const View logits = kept.none() ? ctx.arena.temporary(ctx.batch * head_.out) : kept;
    head_.forward(ctx, pooled, ctx.batch, logits);
    use(0, logits);
  }
  ctx.arena.pop_low(start);
}

namespace {

class ClassifierTrainPass : public TrainPass {
 public:
  explicit ClassifierTrainPass(const ClassifierModel& model) : model_(model) {}
  std::string name() const override { return "train"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const override {
    model_.prepare(batch, stream, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) override {
    model_.forward_backward(ctx, inputs, global_batch, sums, state_);
  }

 private:
  const ClassifierModel& model_;
  ClassifierModel::State state_;
};

}  // namespace

std::unique_ptr<TrainPass> ClassifierModel::make_train_pass() const {
  return std::make_unique<ClassifierTrainPass>(*this);
}
std::unique_ptr<ClassPass> ClassifierModel::make_class_pass(const ClassRequest& request) const {
  return models::make_class_pass(
      {.image = image_input(),
       .classes = head_.out,
       .loss = options_.loss,
       .beta = options_.beta,
       .score = [this, state = std::make_shared<State>()](
                    nn::Context& ctx, View image, View kept,
                    const ClassScorer::Use& use) { score(ctx, image, kept, *state, use); }},
      request);
}
std::vector<Tap> ClassifierModel::taps() const {
  return encoder_.trunk().taps(options_.image_size, options_.image_size);
}
std::unique_ptr<EmbedPass> ClassifierModel::make_embed_pass(
    const std::vector<std::string>& taps) const {
  return make_trunk_embed_pass(encoder_, image_input(), options_.image_size, options_.image_size,
                               taps);
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
