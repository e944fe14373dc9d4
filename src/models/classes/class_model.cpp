// SPDX-License-Identifier: Apache-2.0
#include "models/classes/class_model.hpp"

#include <algorithm>
#include <optional>

#include "kernels/example_sums.hpp"
#include "models/trunks/embed_pass.hpp"

namespace models {

using device::DType;

ClassModel::ClassModel(const ClassOptions& options, const MemoryOptions& memory)
    : options_(options),
      mixing_(options.mixup, options.image_size, options.image_size),
      objective_(options, options.num_classes, options.top),
      encoder_(options.trunk.keys(), options.image_size, options.image_size, memory.recompute,
               list_) {
  const int64_t classes = options.num_classes;
  if (options.trains_trunk()) {
    probes_.push_back({.in = encoder_.width(),
                       .head = make_linear_head("head", encoder_.width(), classes,
                                                options.init_head_bias, list_)});
    return;
  }
  list_.freeze();
  const std::vector<Tap> taps = this->taps();
  for (const ProbeOptions& probe : options.probes)
    probes_.push_back(make_probe(probe, taps, classes,
                                 probes_.empty() ? "head" : fmt::format("head{}", probes_.size()),
                                 list_));
}

std::map<std::string, FeatureSpec> ClassModel::features() const {
  return {{"image",
           {.type = DType::f32,
            .shape = {options_.image_size, options_.image_size, 3},
            .key = "model.image_size",
            .pixels = true}},
          objective_.feature()};
}

double ClassModel::uniform_loss() const {
  return double(probes_.size()) * objective_.uniform_loss();
}

void ClassModel::take_bytes(const kernels::PixelRange& range) {
  bytes_ = true;
  range_ = range;
  encoder_.trunk().take_bytes(range);
}

std::vector<Measure> ClassModel::measures() const {
  if (options_.trains_trunk())
    return objective_.measures(int(first_column(0)) + 1, int(known_column()));
  std::vector<Measure> all = {
      {"loss", "nats", "sum of the cross-entropies of all probes, of this step's batch", 0}};
  for (const Probe& probe : probes_) {
    all.push_back({.name = probe.name + "_loss",
                   .unit = "nats",
                   .doc = "cross-entropy of this probe",
                   .column = int(all.size()),
                   .on_console = false});
    for (int64_t k : options_.top)
      all.push_back({.name = fmt::format("{}_top{}", probe.name, k),
                     .unit = "1",
                     .doc = fmt::format("share of this step's batch whose class is among the {} "
                                        "most likely ones of this probe",
                                        k),
                     .column = int(all.size()),
                     .on_console = k == options_.top.front()});
  }
  return all;
}

std::vector<Tap> ClassModel::taps() const {
  return encoder_.trunk().taps(options_.image_size, options_.image_size);
}

std::unique_ptr<EmbedPass> ClassModel::make_embed_pass(const std::vector<std::string>& taps) const {
  return make_trunk_embed_pass(encoder_, image_input(), options_.image_size, options_.image_size,
                               taps);
}

std::vector<std::string> ClassModel::head_names() const {
  std::vector<std::string> names;
  for (const Probe& probe : probes_)
    if (!probe.name.empty()) names.push_back(probe.name);
  return names;
}

std::string ClassModel::changing_arguments() const {
  if (!options_.trains_trunk())
    return "batch norms of heads exchange statistics with all ranks within passes";
  const std::string reason = encoder_.trunk().changing_arguments();
  return reason.empty() ? objective_.changing_arguments() : reason;
}

int64_t ClassModel::forward_flops() const {
  const ImageGroup group = images();
  int64_t flops = encoder_.forward_flops({&group, 1});
  for (const Probe& probe : probes_) flops += probe.head->forward_flops();
  return flops;
}

int64_t ClassModel::input_flops() const {
  const ImageGroup group = images();
  return encoder_.trunk().input_flops({&group, 1});
}

int64_t ClassModel::train_flops() const {
  if (options_.trains_trunk()) return Model::train_flops();
  const ImageGroup group = images();
  const int64_t trunk = encoder_.forward_flops({&group, 1});
  // Neither the products of a frozen trunk nor the heads' inputs have gradients.
  return trunk + 2 * (forward_flops() - trunk);
}

// ---------------------------------------------------------------- inputs

InputSpec ClassModel::image_input() const {
  return {"image", bytes_ ? DType::u8 : DType::f32, options_.image_size * options_.image_size * 3,
          "image"};
}

ImageGroup ClassModel::images(View of) const {
  return {of, 1, options_.image_size, options_.image_size};
}

std::vector<InputSpec> ClassModel::inputs() const {
  std::vector<InputSpec> specs = {image_input()};
  for (const auto& more : {objective_.inputs(mixing_.on()), mixing_.inputs()})
    specs.insert(specs.end(), more.begin(), more.end());
  return specs;
}

void ClassModel::prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const {
  const std::vector<Mix> mixes = mixing_.draw(batch.examples, batch.first_position, stream);
  mixing_.fill(mixes, into);
  objective_.prepare(batch, mixes, mixing_, into);
}

// ---------------------------------------------------------------- passes

ClassModel::State ClassModel::make_state(const std::vector<std::string>& names) const {
  State state{encoder_.make_pass(), {}, {}, {}};
  auto add = [&](size_t p) {
    state.probes.push_back(p);
    state.encoder.trunk->taps.push_back(probes_[p].tap);
    state.heads.push_back(probes_[p].head->make_pass());
  };
  for (size_t p = 0; names.empty() && p < probes_.size(); ++p) add(p);
  for (const std::string& name : names) {
    const auto probe = std::ranges::find(probes_, name, &Probe::name);
    CHECK(probe != probes_.end(), "no probe {}", name);
    add(size_t(probe - probes_.begin()));
  }
  state.values.resize(state.probes.size());
  return state;
}

// Returns the context of the trunk. If it is frozen, nothing is kept for a backward pass, and batch
// norms use running statistics and leave them as they are.
nn::Context ClassModel::of_trunk(const nn::Context& ctx) const {
  if (options_.trains_trunk()) return ctx;
  return {{.queue = ctx.queue, .arena = ctx.arena}, {.weights = ctx.weights}, ctx, {.keep = false}};
}

void ClassModel::place(nn::Context& ctx, State& state) const {
  nn::Context trunk_ctx = of_trunk(ctx);
  const ImageGroup group = images();
  encoder_.place(trunk_ctx, {&group, 1}, state.encoder);
}

void ClassModel::read_trunk(nn::Context& ctx, View image, State& state) const {
  nn::Context trunk_ctx = of_trunk(ctx);
  const ImageGroup group = images(image);
  const int next = probes_[state.probes.front()].head->block();
  if (options_.trains_trunk()) {
    state.values[0] = encoder_.forward(trunk_ctx, {&group, 1}, next, state.encoder);
    return;
  }
  for (size_t i = 0; i < state.probes.size(); ++i)
    state.values[i] = ctx.arena.temporary(ctx.batch * probes_[state.probes[i]].in);
  const device::Arena::Mark start = ctx.arena.low();
  {
    device::Arena::Scope scope(ctx.arena);
    state.encoder.trunk->read_tap = [&](const Trunk::TapValues& values) {
      for (size_t i = 0; i < state.probes.size(); ++i)
        if (const Probe& probe = probes_[state.probes[i]]; probe.tap == values.tap)
          probe.read(trunk_ctx, values, state.values[i]);
    };
    encoder_.forward(trunk_ctx, {&group, 1}, next, state.encoder);
    state.encoder.trunk->read_tap = {};
  }
  ctx.arena.pop_low(start);
}

void ClassModel::train_probe(nn::Context& ctx, size_t p, const Inputs& inputs, int64_t global_batch,
                             View d, View values, State& state) const {
  device::Arena::Scope scope(ctx.arena);
  const int64_t n = ctx.batch, columns = columns_of_probe();
  const View logits = ctx.arena.temporary(n * options_.num_classes), total = values.slice(0, n),
             own = values.slice(first_column(p) * n, columns * n), loss = own.slice(0, n),
             hits = own.slice(n, (columns - 1) * n);
  const int before = p + 1 < probes_.size()    ? probes_[p + 1].head->block()
                     : options_.trains_trunk() ? encoder_.last_block()
                                               : -1;
  probes_[p].head->train(
      ctx, state.values[p], n, {&logits, 1},
      [&] { objective_.run(ctx, inputs, logits, global_batch, loss, hits); }, d, before,
      *state.heads[p]);
  if (p == 0)
    ctx.run(kernels::Copy{.y = total, .x = loss});
  else
    ctx.run(kernels::Add{.y = total, .a = total, .b = loss});
}

void ClassModel::forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch,
                                  View sums, State& state) const {
  mixing_.check(ctx.batch);
  objective_.check_pass(ctx, global_batch);
  const int64_t n = ctx.batch;
  const bool trains_trunk = options_.trains_trunk();
  const device::Arena::Mark start = ctx.arena.low();
  place(ctx, state);
  ctx.repeat({n}, [&] {
    device::Arena::Scope scope(ctx.arena);
    const View values = ctx.arena.temporary(sum_columns() * n),
               d = trains_trunk ? ctx.arena.temporary(n * encoder_.width()) : View{};
    if (trains_trunk) ctx.run(kernels::Fill{.y = values});
    // Blends of images are lost after the forward pass, unless backward reads them, too.
    std::optional<device::Arena::Scope> blends;
    if (trains_trunk && !encoder_.trunk().reads_images_again()) blends.emplace(ctx.arena);
    read_trunk(ctx, mixing_.mixed(ctx, inputs, inputs.at("image").device, range_), state);
    blends.reset();
    for (size_t p = 0; p < probes_.size(); ++p)
      train_probe(ctx, p, inputs, global_batch, d, values, state);
    if (trains_trunk) encoder_.backward(ctx, d, state.encoder);
    if (objective_.counts_labels())
      ctx.run(
          kernels::Copy{.y = values.slice(known_column() * n, n), .x = inputs.at("known").device});
    ctx.run(kernels::ExampleSums{.sums = sums,
                                 .values = values,
                                 .batch = n,
                                 .columns = sum_columns(),
                                 .slices = ctx.slices});
  });
  ctx.arena.pop_low(start);
}

void ClassModel::score(nn::Context& ctx, View image, View kept, State& state,
                       const ClassLogits::Use& use) const {
  CHECK(!ctx.keep);
  const int64_t n = ctx.batch, count = n * options_.num_classes;
  const device::Arena::Mark start = ctx.arena.low();
  place(ctx, state);
  {
    device::Arena::Scope scope(ctx.arena);
    read_trunk(ctx, image, state);
    for (size_t i = 0; i < state.probes.size(); ++i) {
      device::Arena::Scope probe_scope(ctx.arena);
      const View logits =
          kept.none() ? ctx.arena.temporary(count) : kept.slice(int64_t(i) * count, count);
      const bool last = i + 1 == state.probes.size();
      const int next = last ? -1 : probes_[state.probes[i + 1]].head->block();
      probes_[state.probes[i]].head->forward(ctx, state.values[i], n, {&logits, 1}, next,
                                             *state.heads[i]);
      use(int64_t(i), logits);
    }
  }
  ctx.arena.pop_low(start);
}

namespace {

class ClassTrainPass : public TrainPass {
 public:
  explicit ClassTrainPass(const ClassModel& model) : model_(model), state_(model.make_state()) {}
  std::string name() const override { return "train"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const override {
    model_.prepare(batch, stream, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) override {
    model_.forward_backward(ctx, inputs, global_batch, sums, state_);
  }

 private:
  const ClassModel& model_;
  ClassModel::State state_;
};

template <class Options>
Registered class_row(const char* name, const char* doc) {
  return {name, doc,
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<Options>()); },
          [](const config::Table::Variant& options,
             const MemoryOptions& memory) -> std::unique_ptr<Model> {
            return std::make_unique<ClassModel>(dynamic_cast<const Options&>(options), memory);
          }};
}

}  // namespace

std::unique_ptr<TrainPass> ClassModel::make_train_pass() const {
  return std::make_unique<ClassTrainPass>(*this);
}

ClassLogits ClassModel::logits(const std::vector<std::string>& heads) const {
  const auto state = std::make_shared<State>(make_state(heads));
  return {
      .image = image_input(),
      .heads = int64_t(state->probes.size()),
      .classes = options_.num_classes,
      .loss = options_.loss,
      .beta = options_.beta,
      .run = [this, state](nn::Context& ctx, View image, View kept, const ClassLogits::Use& use) {
        score(ctx, image, kept, *state, use);
      }};
}

Registered classifier_row() {
  return class_row<ClassifierOptions>(
      "classifier", "a trunk and a linear head over classes, or of other numbers of an image");
}

Registered linear_probe_row() {
  return class_row<LinearProbeOptions>(
      "linear_probe", "classifiers on the values of a frozen trunk at several taps");
}

}  // namespace models
