// SPDX-License-Identifier: Apache-2.0
#include "models/classes/linear_probe.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/average_pool.hpp"
#include "kernels/class_xent.hpp"
#include "kernels/example_sums.hpp"
#include "models/classes/class_objective.hpp"
#include "models/heads/head_kinds.hpp"
#include "models/trunks/embed_pass.hpp"

namespace models {

using device::DType;

namespace {

// Error(Exit::config) with the list of taps and the key of the deck if there is no such tap.
Tap named_tap(const std::vector<Tap>& taps, const std::string& name, const std::string& key) {
  try {
    return chosen_taps(taps, {name})[0];
  } catch (const base::Error& e) {
    throw base::Error(e.code(), fmt::format("{}: {}", key, e.what()));
  }
}

}  // namespace

LinearProbeModel::LinearProbeModel(const LinearProbeOptions& options, const MemoryOptions& memory)
    : options_(options),
      encoder_(options.trunk.keys(), options.image_size, options.image_size, memory.recompute,
               list_) {
  list_.freeze();
  const std::vector<Tap> taps = this->taps();
  for (const ProbeOptions& probe : options.probes) probes_.push_back(make_probe(probe, taps));
}

LinearProbeModel::Probe LinearProbeModel::make_probe(const ProbeOptions& options,
                                                     const std::vector<Tap>& taps) {
  const std::string key = fmt::format("model.probe \"{}\"", options.label());
  const Tap tap = named_tap(taps, options.tap, key);
  Probe probe{options.label(),      options.tap, options.pool, options.pool_stride,
              options.pool_padding, tap.count(), nullptr};
  if (probe.pool > 0) {
    if (tap.shape.size() != 3)
      base::fail(base::Exit::config, "{}: pool = {}, but {} has no height and width; leave it out",
                 key, probe.pool, tap.name);
    const int64_t padded = std::min(tap.shape[0], tap.shape[1]) + 2 * probe.pool_padding;
    if (probe.pool > padded)
      base::fail(base::Exit::config,
                 "{}: pool = {} is larger than {}, which has {} x {} values; give at most {}", key,
                 probe.pool, tap.name, tap.shape[0], tap.shape[1], padded);
    const kernels::Window window = probe_window(probe, 1, tap.shape[0], tap.shape[1]);
    probe.in = window.positions() * tap.shape[2];
  }
  if (auto* head = dynamic_cast<const EvalMlpHeadOptions*>(options.head.options.get());
      head && head->channels != tap.shape.back())
    base::fail(base::Exit::config, "{}: its head has channels = {}, but {} has {}", key,
               head->channels, tap.name, tap.shape.back());
  const std::string path = probes_.empty() ? "head" : fmt::format("head{}", probes_.size());
  probe.head = make_head(options.head, path, probe.in, list_);
  if (probe.head->joins() > 1)
    base::fail(base::Exit::config,
               "{}: its head joins {} images, which have a class each; use kind = \"mlp\" or "
               "\"eval_mlp\"",
               key, probe.head->joins());
  if (probe.head->widths() != std::vector<int64_t>{options_.num_classes})
    base::fail(
        base::Exit::config,
        "{}: its head has outputs of {} values; it must have one output, of model.num_classes = {}",
        key, fmt::join(probe.head->widths(), ", "), options_.num_classes);
  return probe;
}

kernels::Window LinearProbeModel::probe_window(const Probe& probe, int64_t images, int64_t height,
                                               int64_t width) {
  return {.batch = images,
          .height = height,
          .width = width,
          .kernel_height = probe.pool,
          .kernel_width = probe.pool,
          .stride = probe.pool_stride,
          .padding = probe.pool_padding};
}

std::map<std::string, FeatureSpec> LinearProbeModel::features() const {
  return {{"image",
           {.type = DType::f32,
            .shape = {options_.image_size, options_.image_size, 3},
            .key = "model.image_size",
            .pixels = true}},
          {"label",
           {.type = DType::i32,
            .shape = {},
            .key = "model.kind",
            .below = options_.num_classes,
            .limit_key = "model.num_classes"}}};
}

double LinearProbeModel::uniform_loss() const {
  return double(probes_.size()) * std::log(double(options_.num_classes));
}

void LinearProbeModel::take_bytes(const kernels::PixelRange& range) {
  bytes_ = true;
  encoder_.trunk().take_bytes(range);
}

std::vector<Measure> LinearProbeModel::measures() const {
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

std::vector<Tap> LinearProbeModel::taps() const {
  return encoder_.trunk().taps(options_.image_size, options_.image_size);
}

std::unique_ptr<EmbedPass> LinearProbeModel::make_embed_pass(
    const std::vector<std::string>& taps) const {
  return make_trunk_embed_pass(encoder_, inputs().front(), options_.image_size, options_.image_size,
                               taps);
}

std::vector<std::string> LinearProbeModel::head_names() const {
  std::vector<std::string> names;
  for (const Probe& probe : probes_) names.push_back(probe.name);
  return names;
}

std::string LinearProbeModel::changing_arguments() const {
  return "batch norms of heads exchange statistics with all ranks within passes";
}

int64_t LinearProbeModel::forward_flops() const {
  const ImageGroup group = images();
  int64_t flops = encoder_.forward_flops({&group, 1});
  for (const Probe& probe : probes_) flops += probe.head->forward_flops();
  return flops;
}

// The products of the trunk have no gradients.
int64_t LinearProbeModel::input_flops() const {
  const ImageGroup group = images();
  return encoder_.trunk().input_flops({&group, 1});
}

int64_t LinearProbeModel::train_flops() const {
  const ImageGroup group = images();
  const int64_t trunk = encoder_.forward_flops({&group, 1});
  // The heads' inputs need no gradient either.
  return trunk + 2 * (forward_flops() - trunk);
}

// ---------------------------------------------------------------- inputs

std::vector<InputSpec> LinearProbeModel::inputs() const {
  const int64_t pixels = options_.image_size * options_.image_size * 3;
  return {{"image", bytes_ ? DType::u8 : DType::f32, pixels}, {"label", DType::i32, 1}};
}

void LinearProbeModel::prepare(const HostBatch& batch, const Inputs& into) const {
  copy_field(batch, "image", into);
  ClassObjective::check_labels(batch, options_.num_classes, false);
  copy_field(batch, "label", into);
}

// ---------------------------------------------------------------- passes

LinearProbeModel::State LinearProbeModel::make_state(const std::vector<std::string>& names) const {
  State state{encoder_.make_pass(), {}, {}};
  for (const std::string& name : names.empty() ? head_names() : names) {
    const auto probe = std::ranges::find(probes_, name, &Probe::name);
    CHECK(probe != probes_.end(), "no probe {}", name);
    state.probes.push_back(size_t(probe - probes_.begin()));
    state.encoder.trunk->taps.push_back(probe->tap);
    state.heads.push_back(probe->head->make_pass());
  }
  return state;
}

ImageGroup LinearProbeModel::images(View of) const {
  return {of, 1, options_.image_size, options_.image_size};
}

// The context of the trunk: nothing is kept for a backward pass, and batch norms use running
// statistics and leave them as they are.
nn::Context LinearProbeModel::frozen(const nn::Context& ctx) {
  return {{.queue = ctx.queue, .arena = ctx.arena}, {.weights = ctx.weights}, ctx, {.keep = false}};
}

void LinearProbeModel::place(nn::Context& ctx, State& state) const {
  nn::Context trunk_ctx = frozen(ctx);
  const ImageGroup group = images();
  encoder_.place(trunk_ctx, {&group, 1}, state.encoder);
}

std::vector<View> LinearProbeModel::read_taps(nn::Context& ctx, View image, State& state) const {
  std::vector<View> out;
  for (size_t p : state.probes) out.push_back(ctx.arena.temporary(ctx.batch * probes_[p].in));
  const device::Arena::Mark start = ctx.arena.low();
  {
    device::Arena::Scope scope(ctx.arena);
    nn::Context trunk_ctx = frozen(ctx);
    const ImageGroup group = images(image);
    state.encoder.trunk->read_tap = [&](const Trunk::TapValues& values) {
      read_tap(trunk_ctx, values, state, out);
    };
    const int next = probes_[state.probes.front()].head->block();
    encoder_.forward(trunk_ctx, {&group, 1}, next, state.encoder);
    state.encoder.trunk->read_tap = {};
  }
  ctx.arena.pop_low(start);
  return out;
}

void LinearProbeModel::read_tap(nn::Context& ctx, const Trunk::TapValues& values,
                                const State& state, const std::vector<View>& into) const {
  for (size_t p = 0; p < state.probes.size(); ++p) {
    const Probe& probe = probes_[state.probes[p]];
    if (probe.tap != values.tap) continue;
    if (probe.pool > 0)
      ctx.run(kernels::AveragePoolForward{
          .y = into[p],
          .x = values.values,
          .window = probe_window(probe, values.images, values.grid_height, values.grid_width),
          .channels = values.channels});
    else if (values.values.type == DType::f32)
      device::copy(into[p], values.values, ctx.queue);
    else
      ctx.run(kernels::Cast{.y = into[p], .x = values.values});
  }
}

void LinearProbeModel::forward_backward(nn::Context& ctx, const Inputs& inputs,
                                        int64_t global_batch, View sums, State& state) const {
  const int64_t n = ctx.batch, classes = options_.num_classes;
  const device::Arena::Mark start = ctx.arena.low();
  place(ctx, state);
  {
    device::Arena::Scope scope(ctx.arena);
    const View values = ctx.arena.temporary(sum_columns() * n), total = values.slice(0, n);
    const std::vector<View> taps = read_taps(ctx, inputs.at("image").device, state);
    for (size_t p = 0; p < probes_.size(); ++p) {
      device::Arena::Scope probe_scope(ctx.arena);
      const Head& head = *probes_[p].head;
      const View logits = ctx.arena.temporary(n * classes),
                 ranks = ctx.arena.temporary(n, DType::i32);
      const View of_probe = values.slice((1 + int64_t(p) * columns_of_probe()) * n,
                                         columns_of_probe() * n),
                 loss = of_probe.slice(0, n);
      const int next = p + 1 < probes_.size() ? probes_[p + 1].head->block() : -1;
      head.forward(ctx, taps[p], n, {&logits, 1}, -1, *state.heads[p]);
      ctx.run(kernels::ClassXent{.logits = logits,
                                 .labels = inputs.at("label").device,
                                 .loss = loss,
                                 .ranks = ranks,
                                 .rows = n,
                                 .columns = classes,
                                 .scale = 1 / float(global_batch),
                                 .loss_scale = ctx.loss_scale});
      count_hits(ctx, ranks, of_probe.slice(n, (columns_of_probe() - 1) * n));
      head.backward(ctx, {&logits, 1}, {}, next, *state.heads[p]);
      if (p == 0)
        device::copy(total, loss, ctx.queue);
      else
        ctx.run(kernels::Add{.y = total, .a = total, .b = loss});
    }
    ctx.run(kernels::ExampleSums{.sums = sums,
                                 .values = values,
                                 .batch = n,
                                 .columns = sum_columns(),
                                 .slices = ctx.slices});
  }
  ctx.arena.pop_low(start);
}

void LinearProbeModel::count_hits(nn::Context& ctx, View ranks, View hits) const {
  kernels::RankHits op{
      .hits = hits, .ranks = ranks, .rows = ranks.count, .count = int64_t(options_.top.size())};
  for (size_t j = 0; j < options_.top.size(); ++j)
    op.k[j] = int32_t(std::min<int64_t>(options_.top[j], INT32_MAX));
  ctx.run(op);
}

void LinearProbeModel::score(nn::Context& ctx, View image, View kept, State& state,
                             const ClassScorer::Use& use) const {
  CHECK(!ctx.keep);
  const int64_t n = ctx.batch;
  const device::Arena::Mark start = ctx.arena.low();
  place(ctx, state);
  {
    device::Arena::Scope scope(ctx.arena);
    const std::vector<View> taps = read_taps(ctx, image, state);
    for (size_t p = 0; p < state.probes.size(); ++p) {
      device::Arena::Scope probe_scope(ctx.arena);
      const int64_t count = n * options_.num_classes;
      const View logits =
          kept.none() ? ctx.arena.temporary(count) : kept.slice(int64_t(p) * count, count);
      const bool last = p + 1 == state.probes.size();
      const int next = last ? -1 : probes_[state.probes[p + 1]].head->block();
      probes_[state.probes[p]].head->forward(ctx, taps[p], n, {&logits, 1}, next, *state.heads[p]);
      use(int64_t(p), logits);
    }
  }
  ctx.arena.pop_low(start);
}

namespace {

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

}  // namespace

std::unique_ptr<TrainPass> LinearProbeModel::make_train_pass() const {
  return std::make_unique<LinearProbeTrainPass>(*this);
}

std::unique_ptr<ClassPass> LinearProbeModel::make_class_pass(const ClassRequest& request) const {
  const auto state = std::make_shared<State>(make_state(request.heads));
  return models::make_class_pass(
      {.image = inputs().front(),
       .heads = int64_t(state->probes.size()),
       .classes = options_.num_classes,
       .score = [this, state](
                    nn::Context& ctx, View image, View kept,
                    const ClassScorer::Use& use) { score(ctx, image, kept, *state, use); }},
      request);
}

Registered linear_probe_row() {
  return {"linear_probe", "classifiers on the values of a frozen trunk at several taps",
          [] {
            return std::shared_ptr<config::Table::Variant>(std::make_shared<LinearProbeOptions>());
          },
          [](const config::Table::Variant& options,
             const MemoryOptions& memory) -> std::unique_ptr<Model> {
            return std::make_unique<LinearProbeModel>(
                dynamic_cast<const LinearProbeOptions&>(options), memory);
          }};
}

}  // namespace models
