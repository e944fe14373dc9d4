// SPDX-License-Identifier: Apache-2.0
#include "models/captions/cappa.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/loss_sums.hpp"
#include "models/captions/pair_score_pass.hpp"
#include "models/trunks/embed_pass.hpp"

namespace models {

Cappa::Cappa(const CappaOptions& options, const MemoryOptions& memory)
    : options_(options),
      encoder_(*options.trunk_keys(), options.height(), options.width(), memory.recompute, list_,
               false),
      decoder_(options.decoder_config(encoder().grid(options.height(), options.width()).count(),
                                      encoder_.width()),
               memory.recompute, list_),
      head_(options.head(), list_) {}

std::vector<InputSpec> Cappa::inputs() const {
  using device::DType;
  std::vector<InputSpec> specs = {
      {"image", bytes_ ? DType::u8 : DType::f32, options_.height() * options_.width() * 3, "image"},
      {"labels", DType::i32, options_.length(), "labels"},
      {"weights", DType::f32, options_.length()},
      {"decoder_ids", DType::i32, options_.length()}};
  if (options_.masked()) specs.push_back({"causal", DType::u8, 1});
  if (drops_tokens()) specs.push_back({"kept", DType::i32, kept_tokens()});
  return specs;
}

void Cappa::take_bytes(const kernels::PixelRange& range) {
  bytes_ = true;
  encoder_.trunk().take_bytes(range);
}

TrunkWeights Cappa::trunk_weights() const {
  TrunkWeights weights = encoder().weights();
  if (!options_.trunk) weights.form = nullptr;  // keys of model.encoder set its numbers
  // The final norm of a ConvNeXt belongs to the pooling, which captioners do not train.
  const std::vector<shard::Parameter> own = parameters();
  if (weights.torch)
    std::erase_if(weights.torch->parts, [&](const std::string& part) {
      const std::string begin = fmt::format("{}{}.", weights.torch->root, part);
      return std::ranges::none_of(
          own, [&](const shard::Parameter& p) { return p.path.starts_with(begin); });
    });
  return weights;
}

std::map<std::string, FeatureSpec> Cappa::features() const {
  using device::DType;
  return {{"image",
           {.type = DType::f32,
            .shape = {options_.height(), options_.width(), 3},
            .key = "model.image_size",
            .pixels = true}},
          {"labels",
           {.type = DType::i32,
            .shape = {options_.length()},
            .key = "model.seq_len",
            .below = options_.vocab_size,
            .limit_key = "model.vocab_size",
            .pad = double(options_.pad_id)}},
          {"label_masks",
           {.type = DType::f32,
            .shape = {options_.length()},
            .key = "model.seq_len",
            .optional = true}}};
}

static_assert(int(Cappa::Sums::count) == int(kernels::LossColumns::count) &&
              int(Cappa::Sums::loss_parallel) == int(kernels::LossColumns::loss_second) &&
              int(Cappa::Sums::examples_parallel) == int(kernels::LossColumns::examples_second) &&
              int(Cappa::Sums::tokens) == int(kernels::LossColumns::rows) &&
              int(Cappa::Sums::token_nll) == int(kernels::LossColumns::row_loss));

std::vector<Measure> Cappa::measures() const {
  return {{"loss", "nats/token",
           "loss of this step's batch before the update: mean over examples of each caption's mean "
           "over its tokens",
           Sums::loss},
          {"loss_ar", "nats/token", "loss of the examples that are predicted autoregressively",
           Sums::loss_ar, Sums::examples_ar},
          {"loss_parallel", "nats/token", "loss of the examples that are predicted in parallel",
           Sums::loss_parallel, Sums::examples_parallel},
          {"loss_per_token", "nats/token",
           "sum of the losses of all tokens of the batch over their number", Sums::token_nll,
           Sums::tokens, false}};
}

Cappa::Draws Cappa::draw(const int32_t* labels, int64_t examples, int64_t first_position,
                         bool train, base::Stream stream) const {
  int64_t length = options_.length();
  Draws draws{std::vector<uint8_t>(size_t(examples)),
              std::vector<int32_t>(size_t(examples * length)),
              draw_kept(examples, first_position, train, stream)};
  int64_t masked = options_.masked_tokens();
  std::vector<int> order(static_cast<size_t>(length));
  std::vector<uint32_t> key(static_cast<size_t>(length));
  for (int64_t b = 0; b < examples; ++b) {
    const int32_t* label = labels + b * length;
    int32_t* ids = draws.decoder_ids.data() + b * length;
    base::Stream mine = stream.sub(uint64_t(first_position + b));
    bool parallel =
        train && options_.masked() && mine.uniform(0) < float(options_.masked_pred_prob);
    draws.parallel[size_t(b)] = parallel;
    if (!parallel) {
      ids[0] = 0;  // the leading token is id 0 for every pad id
      std::copy(label, label + length - 1, ids + 1);
      continue;
    }
    std::copy(label, label + length, ids);
    for (size_t l = 0; l < key.size(); ++l) key[l] = mine.bits(1 + l);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int c) {
      return std::pair(key[size_t(a)], a) < std::pair(key[size_t(c)], c);
    });
    for (int64_t i = 0; i < masked; ++i) ids[order[size_t(i)]] = int32_t(options_.vocab_size);
  }
  return draws;
}

// The tokens with the smallest keys. Evaluations read all, so they need no draws.
std::vector<int32_t> Cappa::draw_kept(int64_t examples, int64_t first_position, bool train,
                                      const base::Stream& stream) const {
  if (!drops_tokens()) return {};
  const int64_t all = tokens(), kept = kept_tokens();
  std::vector<int32_t> rows;
  std::vector<std::pair<uint32_t, int32_t>> keys(static_cast<size_t>(all));
  for (int64_t b = 0; b < examples; ++b) {
    const base::Stream mine = stream.sub(uint64_t(first_position + b)).sub(1);
    for (int64_t t = 0; t < all; ++t)
      keys[size_t(t)] = {train ? mine.bits(uint64_t(t)) : 0, int32_t(b * all + t)};
    std::nth_element(keys.begin(), keys.begin() + kept - 1, keys.end());
    for (int64_t k = 0; k < kept; ++k) rows.push_back(keys[size_t(k)].second);
    std::sort(rows.end() - kept, rows.end());
  }
  return rows;
}

void Cappa::prepare(const HostBatch& batch, bool train, base::Stream stream,
                    const Inputs& into) const {
  check_labels(batch);  // before draws, which read them
  fill(batch,
       draw(batch.features.at("labels").i32(), batch.examples, batch.first_position, train, stream),
       into);
}

void Cappa::prepare(const HostBatch& batch, const Draws& draws, const Inputs& into) const {
  check_labels(batch);
  fill(batch, draws, into);
}

void Cappa::fill(const HostBatch& batch, const Draws& draws, const Inputs& into) const {
  const int64_t n = batch.examples;
  auto buffer = [&](const char* name) { return into.at(name).host; };
  const View labels = batch.features.at("labels");
  float* weights = buffer("weights").f32();
  for (int64_t i = 0; i < labels.count; ++i)
    weights[i] = labels.i32()[i] != int32_t(options_.pad_id) ? 1.0f : 0.0f;
  if (auto masks = batch.features.find("label_masks"); masks != batch.features.end()) {
    CHECK(masks->second.type == device::DType::f32 && masks->second.count == labels.count,
          "label_masks do not fit the labels");
    for (int64_t i = 0; i < labels.count; ++i) weights[i] *= masks->second.f32()[i];
  }
  std::memcpy(buffer("decoder_ids").data, draws.decoder_ids.data(), draws.decoder_ids.size() * 4);
  if (options_.masked())
    for (int64_t b = 0; b < n; ++b) buffer("causal").u8()[b] = !draws.parallel[size_t(b)];
  if (drops_tokens())
    std::memcpy(buffer("kept").data, draws.kept.data(), draws.kept.size() * sizeof(int32_t));
}

// Throws Error(Exit::data) for a label outside the vocabulary.
void Cappa::check_labels(const HostBatch& batch) const {
  const View labels = batch.features.at("labels");
  for (int64_t i = 0; i < labels.count; ++i)
    if (int32_t id = labels.i32()[i]; id < 0 || id >= options_.vocab_size)
      base::fail(base::Exit::data,
                 "label {} of the example at position {} lies outside the vocabulary of {} "
                 "(model.vocab_size)",
                 id, batch.first_position + i / options_.length(), options_.vocab_size);
}

View Cappa::flags(const Inputs& inputs) const {
  return options_.masked() ? inputs.at("causal").device : View{};
}

CaptionDecoder::Memory Cappa::memory(nn::Context& ctx, const Inputs& inputs, View encoded) const {
  if (!ctx.train || !drops_tokens()) return {encoded, flags(inputs), tokens()};
  const int64_t rows = ctx.batch * kept_tokens();
  const View some = ctx.make(ctx.keep, rows * encoder_.width(), encoded.type);
  ctx.run(kernels::GatherRows{.y = some,
                              .x = encoded,
                              .index = inputs.at("kept").device,
                              .rows = rows,
                              .width = encoder_.width(),
                              .source_rows = ctx.batch * tokens()});
  return {some, flags(inputs), kept_tokens()};
}

std::string Cappa::changing_arguments() const {
  const std::string reason = encoder().changing_arguments();
  return reason.empty() && decoder_.drops() ? "dropout draws other numbers in each pass" : reason;
}

// Selects the text rows that the loss depends on.
void Cappa::select(const nn::Context& ctx, const Inputs& inputs, State& state) const {
  const int64_t length = options_.length();
  CaptionDecoder::Selection& selection = state.decoder.selection;
  if (!options_.pack_text) {
    selection.rows.assign_all(ctx.batch, ctx.slices, length);
    selection.last = selection.rows;
    return;
  }
  if (ctx.queue.kind() == device::Kind::plan || (ctx.train && decoder_.drops())) {
    selection.rows.assign_set(ctx.shape_set, ctx.batch, ctx.slices, length);
    selection.last.assign_set(ctx.shape_set, ctx.batch, ctx.slices, length);
    return;
  }
  state.needed.assign(size_t(ctx.batch), length);
  state.loss_ends.assign(size_t(ctx.batch), 1);
  const float* weights = inputs.at("weights").host.f32();
  for (int64_t b = 0; b < ctx.batch; ++b)
    for (int64_t l = 0; l < length; ++l)
      if (weights[b * length + l] > 0) state.loss_ends[size_t(b)] = l + 1;
  selection.last.assign(state.loss_ends, ctx.slices, length);
  // Under a causal mask no position depends on later ones. Without the mask every position depends
  // on all, so all are computed. The other layers always compute the rows of the last layer, too.
  for (int64_t b = 0; b < ctx.batch; ++b)
    if (!options_.masked() || inputs.at("causal").host.u8()[b])
      state.needed[size_t(b)] = selection.last.rows_of(size_t(b));
  selection.rows.assign(state.needed, ctx.slices, length);
}

// Copies the host's tables to where ops read them.
void Cappa::place(nn::Context& ctx, State& state) const {
  if (!state.encoder) state.encoder = encoder().make_pass();
  const ImageGroup group = images();
  encoder().place(ctx, {&group, 1}, *state.encoder);
  decoder_.place(ctx, state.decoder);
}

// Runs encoder and decoder; returns the decoder's output.
View Cappa::decode(nn::Context& ctx, const Inputs& inputs, State& state) const {
  const ImageGroup group = images(inputs.at("image").device);
  const Tokens& encoded =
      encoder().forward(ctx, {&group, 1}, decoder_.first_block(), *state.encoder);
  return decoder_.forward(ctx, inputs.at("decoder_ids").device,
                          memory(ctx, inputs, encoded.of_one_size()), head_.block(), state.decoder);
}

void Cappa::forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch,
                             View sums, State& state) const {
  device::Arena::Mark start = ctx.arena.low();
  select(ctx, inputs, state);
  place(ctx, state);
  const TextRows &rows = state.decoder.selection.rows, &last = state.decoder.selection.last;
  head_.place_targets(ctx, last, inputs.at("labels").host, inputs.at("weights").host, global_batch,
                      state.head);
  // These counts fix the shapes of one slice. With several slices no pass is repeated.
  ctx.repeat({rows.count(), last.count(), state.head.first.back()}, [&] {
    device::Arena::Scope scope(ctx.arena);
    View y = decode(ctx, inputs, state);
    View d = ctx.arena.temporary(last.count() * options_.decoder_width());
    head_.forward_backward(ctx, y, last, d, decoder_.last_block(), state.head);
    const Tokens& d_encoded = encoder().make_gradient(ctx, *state.encoder);
    backward_decoder(ctx, inputs, d, d_encoded.of_one_size(), state);
    encoder().backward(ctx, *state.encoder);
    const CaptionHead::Targets& targets = state.head.targets;
    ctx.run(kernels::LossSums{.sums = sums,
                              .loss = targets.loss,
                              .first = targets.examples,
                              .weights = inputs.at("weights").device,
                              .flags = flags(inputs),
                              .batch = ctx.batch,
                              .length = options_.length(),
                              .slices = ctx.slices});
  });
  ctx.arena.pop_low(start);
}

// The decoder adds up the gradient of the tokens in f32, whatever type the trunk reads. Tokens that
// it has not read get zeros.
void Cappa::backward_decoder(nn::Context& ctx, const Inputs& inputs, View d, View d_encoded,
                             State& state) const {
  device::Arena::Scope scope(ctx.arena);
  const bool same = d_encoded.type == device::DType::f32;
  const View sum = same ? d_encoded : ctx.arena.temporary(d_encoded.count);
  const int64_t rows = ctx.batch * kept_tokens();
  const View read = drops_tokens() ? ctx.arena.temporary(rows * encoder_.width()) : sum;
  decoder_.backward(ctx, d, read, encoder().last_block(), state.decoder);
  if (drops_tokens()) {
    ctx.run(kernels::Fill{.y = sum});
    ctx.run(kernels::ScatterRows{.y = sum,
                                 .x = read,
                                 .index = inputs.at("kept").device,
                                 .rows = rows,
                                 .width = encoder_.width(),
                                 .target_rows = ctx.batch * tokens()});
  }
  if (!same) ctx.run(kernels::Cast{.y = d_encoded, .x = sum});
}

void Cappa::logits(nn::Context& ctx, const Inputs& inputs, View out, State& state) const {
  CHECK(!ctx.keep);
  device::Arena::Mark start = ctx.arena.low();
  CaptionDecoder::Selection& selection = state.decoder.selection;
  selection.rows.assign_all(ctx.batch, ctx.slices, options_.length());
  selection.last = selection.rows;
  place(ctx, state);
  View y = decode(ctx, inputs, state);
  head_.logits(ctx, y, out);
  ctx.arena.pop_low(start);
}

void Cappa::evaluate(nn::Context& ctx, const Inputs& inputs, State& state) const {
  CHECK(!ctx.keep);
  select(ctx, inputs, state);
  place(ctx, state);
  const TextRows& last = state.decoder.selection.last;
  head_.place_targets(ctx, last, inputs.at("labels").host, inputs.at("weights").host, 0,
                      state.head);
  View y = decode(ctx, inputs, state);
  head_.evaluate(ctx, y, last, state.head);
}

// ---------------------------------------------------------------- passes

namespace {

class CappaTrainPass : public TrainPass {
 public:
  explicit CappaTrainPass(const Cappa& model) : model_(model) {}
  std::string name() const override { return "train"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const override {
    model_.prepare(batch, true, stream, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) override {
    model_.forward_backward(ctx, inputs, global_batch, sums, state_);
  }
  int64_t shape_sets(int64_t batch, int64_t slices) const override {
    return model_.computes_all_rows() ? 1
                                      : TextRows::sets(batch / slices, model_.options().length());
  }

 private:
  const Cappa& model_;
  Cappa::State state_;
};

class CappaScorePass : public ScorePass {
 public:
  explicit CappaScorePass(const Cappa& model) : model_(model) {}
  std::string name() const override { return "score"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, const Inputs& into) const override {
    model_.prepare(batch, false, {}, into);
  }
  void run(nn::Context& ctx, const Inputs& inputs, double* nll, double* weight) override {
    const int64_t length = model_.options().length();
    device::Arena::Mark start = ctx.arena.low();
    model_.evaluate(ctx, inputs, state_);
    row_loss_.resize(size_t(ctx.batch * length));
    model_.head().read_losses(ctx, state_.head, row_loss_);
    ctx.arena.pop_low(start);
    if (ctx.queue.kind() == device::Kind::plan) return;
    const float* w = inputs.at("weights").host.f32();
    for (int64_t b = 0; b < ctx.batch; ++b) {
      nll[b] = weight[b] = 0;
      for (int64_t r = b * length; r < (b + 1) * length; ++r) {
        nll[b] += double(w[r]) * double(row_loss_[size_t(r)]);
        weight[b] += double(w[r]);
      }
    }
  }

 private:
  const Cappa& model_;
  Cappa::State state_;
  std::vector<float> row_loss_;  // by position
};

}  // namespace

std::unique_ptr<TrainPass> Cappa::make_train_pass() const {
  return std::make_unique<CappaTrainPass>(*this);
}
std::unique_ptr<ScorePass> Cappa::make_score_pass() const {
  return std::make_unique<CappaScorePass>(*this);
}
std::vector<Tap> Cappa::taps() const { return encoder().taps(options_.height(), options_.width()); }
std::unique_ptr<EmbedPass> Cappa::make_embed_pass(const std::vector<std::string>& taps) const {
  return make_trunk_embed_pass(encoder_, inputs().front(), options_.height(), options_.width(),
                               taps);
}
std::unique_ptr<PairScorePass> Cappa::make_pair_score_pass() const {
  return models::make_pair_score_pass(
      {encoder(), images(), decoder_, head_, options_.head(), options_.pad_id, inputs().front()});
}

int64_t Cappa::forward_flops() const {
  const ImageGroup group = images();
  return encoder().forward_flops({&group, 1}) + decoder_.forward_flops(kept_tokens()) +
         head_.forward_flops();
}
int64_t Cappa::input_flops() const {
  const ImageGroup group = images();
  return encoder().input_flops({&group, 1});
}

Registered cappa_row() {
  return {"cappa",
          "image encoder and caption decoder that predicts in parallel and autoregressively (arXiv "
          "2306.07915)",
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<CappaOptions>()); },
          [](const config::Table::Variant& options,
             const MemoryOptions& memory) -> std::unique_ptr<Model> {
            return std::make_unique<Cappa>(dynamic_cast<const CappaOptions&>(options), memory);
          }};
}

}  // namespace models
