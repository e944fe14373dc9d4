#include "models/cappa.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace models {

Cappa::Cappa(const CappaOptions& options, const LossOptions& loss, const MemoryOptions& memory)
    : options_(options),
      loss_(loss),
      encoder_(options, memory.policy(), list_),
      decoder_(options, memory.policy(), list_),
      head_(options, loss, memory.logits_mb, list_) {}

std::unique_ptr<Model> make_cappa(const config::Table::Variant& options, const LossOptions& loss,
                                  const MemoryOptions& memory) {
  return std::make_unique<Cappa>(dynamic_cast<const CappaOptions&>(options), loss, memory);
}

std::vector<InputSpec> Cappa::inputs() const {
  using device::DType;
  std::vector<InputSpec> specs = {{"image", bytes_ ? DType::u8 : DType::f32, options_.height() * options_.width() * 3},
                                  {"labels", DType::i32, options_.length()},
                                  {"weights", DType::f32, options_.length()},
                                  {"decoder_ids", DType::i32, options_.length()}};
  if (options_.masked()) specs.push_back({"causal", DType::u8, 1});
  return specs;
}

std::vector<std::string> Cappa::patch_tables() const {
  for (const shard::Parameter& p : list_.parameters())
    if (p.path == "encoder/pos_embedding") return {p.path};
  return {};
}

std::map<std::string, FeatureSpec> Cappa::features() const {
  using device::DType;
  return {{"image", {DType::f32, {options_.height(), options_.width(), 3}, "model.image_size"}},
          {"labels", {DType::i32, {options_.length()}, "model.seq_len"}},
          {"label_masks", {DType::f32, {options_.length()}, "model.seq_len", true}}};
}

Draws Cappa::draw(const int32_t* labels, int64_t examples, int64_t first_position, bool train,
                  base::Stream stream) const {
  int64_t length = options_.length();
  Draws draws{std::vector<uint8_t>(size_t(examples)), std::vector<int32_t>(size_t(examples * length))};
  int64_t masked = options_.masked_tokens();
  std::vector<int> order(static_cast<size_t>(length));
  std::vector<uint32_t> key(static_cast<size_t>(length));
  for (int64_t b = 0; b < examples; ++b) {
    const int32_t* label = labels + b * length;
    int32_t* ids = draws.decoder_ids.data() + b * length;
    base::Stream mine = stream.sub(uint64_t(first_position + b));
    bool parallel = train && options_.masked() && mine.uniform(0) < float(options_.masked_pred_prob);
    draws.parallel[size_t(b)] = parallel;
    if (!parallel) {
      ids[0] = 0;  // the leading token is id 0, whatever the pad id
      std::copy(label, label + length - 1, ids + 1);
      continue;
    }
    std::copy(label, label + length, ids);
    for (size_t l = 0; l < key.size(); ++l) key[l] = mine.bits(1 + l);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int c) { return std::pair(key[size_t(a)], a) < std::pair(key[size_t(c)], c); });
    for (int64_t i = 0; i < masked; ++i) ids[order[size_t(i)]] = int32_t(options_.vocab_size);
  }
  return draws;
}

void Cappa::prepare(const HostBatch& batch, bool train, base::Stream stream, const Draws* draws,
                    const Inputs& into) const {
  int64_t n = batch.examples, length = options_.length();
  auto buffer = [&](const char* name) { return into.at(name).host; };
  View image = batch.features.at("image"), labels = batch.features.at("labels");
  CHECK(image.count == buffer("image").count && labels.count == n * length, "batch of {} examples does not fit the buffers", n);
  CHECK(image.type == buffer("image").type && labels.type == buffer("labels").type,
        "the batch is of other types than the buffers");
  std::memcpy(buffer("image").data, image.data, size_t(image.bytes()));
  std::memcpy(buffer("labels").data, labels.data, size_t(labels.bytes()));
  float* weights = buffer("weights").f32();
  for (int64_t i = 0; i < labels.count; ++i) weights[i] = labels.i32()[i] != int32_t(loss_.pad_id) ? 1.0f : 0.0f;
  if (auto masks = batch.features.find("label_masks"); masks != batch.features.end()) {
    CHECK(masks->second.type == device::DType::f32 && masks->second.count == labels.count,
          "label_masks do not fit the labels");
    for (int64_t i = 0; i < labels.count; ++i) weights[i] *= masks->second.f32()[i];
  }
  for (int64_t i = 0; i < labels.count; ++i)
    if (int32_t id = labels.i32()[i]; id < 0 || id >= options_.vocab_size)
      base::fail(base::Exit::data,
                 "label {} of the example at position {} lies outside the vocabulary of {} (model.vocab_size)", id,
                 batch.first_position + i / length, options_.vocab_size);
  Draws own;
  if (!draws) own = draw(labels.i32(), n, batch.first_position, train, stream), draws = &own;
  std::memcpy(buffer("decoder_ids").data, draws->decoder_ids.data(), draws->decoder_ids.size() * 4);
  if (options_.masked())
    for (int64_t b = 0; b < n; ++b) buffer("causal").u8()[b] = !draws->parallel[size_t(b)];
}

CaptionDecoder::Memory Cappa::memory(const Inputs& inputs, View encoded) const {
  return {encoded, options_.masked() ? inputs.at("causal").device : View{}};
}

std::string Cappa::changing_arguments() const {
  return encoder_.drops() || decoder_.drops() ? "dropout draws other numbers in each pass" : "";
}

int64_t Cappa::shape_sets(int64_t batch, int64_t slices) const {
  return decoder_.drops() ? 1 : TextRows::sets(batch / slices, options_.length());
}

void Cappa::select(const nn::Context& ctx, const Inputs& inputs, CaptionDecoder::Selection& selection) {
  const int64_t length = options_.length();
  if (ctx.queue.kind() == device::Kind::plan || (ctx.train && decoder_.drops())) {
    selection.rows.assign_set(ctx.shape_set, ctx.batch, ctx.slices, length);
    selection.last.assign_set(ctx.shape_set, ctx.batch, ctx.slices, length);
    return;
  }
  seen_.assign(size_t(ctx.batch), length), wanted_.assign(size_t(ctx.batch), 1);
  const float* weights = inputs.at("weights").host.f32();
  for (int64_t b = 0; b < ctx.batch; ++b)
    for (int64_t l = 0; l < length; ++l)
      if (weights[b * length + l] > 0) wanted_[size_t(b)] = l + 1;
  selection.last.assign(wanted_, ctx.slices, length);
  // Keys that no mask hides are seen by all positions. The rows of the last layer are among those before.
  for (int64_t b = 0; b < ctx.batch; ++b)
    if (!options_.masked() || inputs.at("causal").host.u8()[b]) seen_[size_t(b)] = selection.last.rows_of(size_t(b));
  selection.rows.assign(seen_, ctx.slices, length);
}

// Everything that the host makes for the ops.
void Cappa::place(nn::Context& ctx) {
  encoder_.place(ctx), decoder_.place(ctx);
  selection_.place(ctx);
}

void Cappa::forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) {
  device::Arena::Mark start = ctx.arena.low();
  select(ctx, inputs, selection_);
  place(ctx);
  const CaptionHead::Targets targets =
      head_.place_targets(ctx, selection_.last, inputs.at("labels").host, inputs.at("weights").host, global_batch);
  // One slice is all rows; more of them are never repeated.
  ctx.repeat({selection_.rows.count(), selection_.last.count(), targets.first.back()}, [&] {
    device::Arena::Scope scope(ctx.arena);
    View encoded = encoder_.forward(ctx, inputs.at("image").device, decoder_.first_block());
    View y = decoder_.forward(ctx, inputs.at("decoder_ids").device, memory(inputs, encoded), selection_, head_.block());
    View d = ctx.arena.temporary(selection_.last.count() * options_.decoder_width());
    head_.forward_backward(ctx, y, selection_.last, targets, d, decoder_.last_block());
    View d_encoded = ctx.arena.temporary(ctx.batch * options_.patches() * options_.encoder.width);
    decoder_.backward(ctx, d, d_encoded, encoder_.last_block());
    encoder_.backward(ctx, d_encoded);
    ctx.run(kernels::LossSums{.sums = sums, .loss = targets.loss, .first = targets.examples,
                              .weights = inputs.at("weights").device, .causal = memory(inputs, {}).flags, .batch = ctx.batch,
                              .length = options_.length(), .slices = ctx.slices});
  });
  ctx.arena.pop_low(start);
}

void Cappa::logits(nn::Context& ctx, const Inputs& inputs, View out) {
  CHECK(!ctx.keep);
  device::Arena::Mark start = ctx.arena.low();
  selection_.rows.assign_all(ctx.batch, ctx.slices, options_.length());
  selection_.last = selection_.rows;
  place(ctx);
  View encoded = encoder_.forward(ctx, inputs.at("image").device, decoder_.first_block());
  View y = decoder_.forward(ctx, inputs.at("decoder_ids").device, memory(inputs, encoded), selection_, head_.block());
  head_.logits(ctx, y, out);
  ctx.arena.pop_low(start);
}

void Cappa::evaluate(nn::Context& ctx, const Inputs& inputs, double* nll, double* weight) {
  CHECK(!ctx.keep);
  device::Arena::Mark start = ctx.arena.low();
  int64_t length = options_.length();
  select(ctx, inputs, selection_);
  place(ctx);
  const CaptionHead::Targets targets =
      head_.place_targets(ctx, selection_.last, inputs.at("labels").host, inputs.at("weights").host, 0);
  View encoded = encoder_.forward(ctx, inputs.at("image").device, decoder_.first_block());
  View y = decoder_.forward(ctx, inputs.at("decoder_ids").device, memory(inputs, encoded), selection_, head_.block());
  head_.evaluate(ctx, y, selection_.last, targets);
  row_loss_.resize(size_t(ctx.batch * length));
  head_.read_losses(ctx, targets, row_loss_);
  ctx.arena.pop_low(start);
  if (ctx.queue.kind() == device::Kind::plan) return;
  const float* w = inputs.at("weights").host.f32();
  for (int64_t b = 0; b < ctx.batch; ++b) {
    nll[b] = weight[b] = 0;
    for (int64_t r = b * length; r < (b + 1) * length; ++r)
      nll[b] += double(w[r]) * double(row_loss_[size_t(r)]), weight[b] += double(w[r]);
  }
}

int64_t Cappa::forward_flops() const {
  return encoder_.forward_flops() + decoder_.forward_flops() + head_.forward_flops();
}

Registered cappa_row() {
  return {"cappa", "ViT encoder and caption decoder that predicts in parallel and autoregressively (arXiv 2306.07915)",
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<CappaOptions>()); }, make_cappa};
}

}  // namespace models
