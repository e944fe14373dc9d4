// SPDX-License-Identifier: Apache-2.0
#include "models/pairs/siglip.hpp"

#include "models/trunks/embed_pass.hpp"

namespace models {

using device::DType;

void SiglipOptions::bind(config::Table& t) {
  const auto never = config::OnResume::never;
  bind_image_size(t, image_size);
  t.key("vocab_size", vocab_size, "rows of the table of tokens")
      .required()
      .min(2)
      .max(1 << 24)
      .on_resume(never);
  t.key("seq_len", seq_len, "tokens of every text, padding included")
      .min(1)
      .max(1 << 20)
      .unit("tokens")
      .on_resume(never);
  t.key("image_head", image_head,
        "a product makes embeddings of the pooled images; without it the pooled vector is the "
        "embedding. Texts always have such a head")
      .on_resume(never);
  t.key("dim", dim, "width of an embedding; 0 = the trunk's width, the only one without image_head")
      .min(0)
      .max(65536)
      .on_resume(never);
  t.table("loss", loss, "the sigmoid loss of pairs");
  t.table("trunk", trunk, "the tower of images");
  t.table("text", text, "the tower of texts: layers of a ViT, without a mask");
  if (!trunk.options) return;
  if (const std::string problem = trunk.keys().image_problem(height(), width()); !problem.empty())
    t.error("image_size", problem);
}

Siglip::Siglip(const SiglipOptions& options, const MemoryOptions& memory)
    : options_(options),
      trunk_(options.trunk.keys(), options.height(), options.width(), memory.recompute, list_),
      dim_(dim_of(options)),
      image_head_(options.image_head ? project("head", trunk_.width()) : Projection{}),
      text_(options.text, options.vocab_size, options.seq_len, memory.recompute, list_),
      text_head_(project("txt/head", text_.width())),
      loss_(make_sigmoid_loss(options.loss, list_)) {}

int64_t Siglip::dim_of(const SiglipOptions& options) const {
  if (options.dim && !options.image_head && options.dim != trunk_.width())
    base::fail(base::Exit::config,
               "model.dim = {}, but images have no head, and their vectors have {} numbers; set "
               "model.image_head = true, or leave model.dim out",
               options.dim, trunk_.width());
  return options.dim ? options.dim : trunk_.width();
}

Siglip::Projection Siglip::project(const std::string& path, int64_t in) {
  Projection p{.block = list_.begin_block(path), .linear = {.in = in, .out = dim_}};
  p.linear.kernel = list_.add_operand(path + "/kernel", {in, dim_}, ParameterList::lecun(in));
  p.linear.bias = list_.add(path + "/bias", {dim_}, ParameterList::zeros());
  return p;
}

TrunkWeights Siglip::trunk_weights() const {
  TrunkWeights weights = trunk_.trunk().weights();
  weights.texts = VitFacts{.root = "txt/", .heads = options_.text.heads, .patches = text_.length()};
  return weights;
}

std::map<std::string, FeatureSpec> Siglip::features() const {
  return {{"image",
           {.type = DType::f32,
            .shape = {options_.height(), options_.width(), 3},
            .key = "model.image_size",
            .pixels = true}},
          {"labels",
           {.type = DType::i32,
            .shape = {options_.seq_len},
            .key = "model.seq_len",
            .below = options_.vocab_size,
            .limit_key = "model.vocab_size"}}};
}

void Siglip::take_bytes(const kernels::PixelRange& range) {
  bytes_ = true;
  trunk_.trunk().take_bytes(range);
}

std::vector<Measure> Siglip::measures() const {
  return {{"loss", "nats",
           "sigmoid loss of this step's batch before the update: sum over all texts of the batch, "
           "mean over its images"}};
}

std::unique_ptr<TrainPass> Siglip::make_train_pass() const { return make_siglip_pass(*this); }

std::unique_ptr<PairScorePass> Siglip::make_pair_score_pass() const {
  return make_siglip_scores(*this);
}

std::vector<Tap> Siglip::taps() const {
  return trunk_.trunk().taps(options_.height(), options_.width());
}

std::unique_ptr<EmbedPass> Siglip::make_embed_pass(const std::vector<std::string>& taps) const {
  return make_trunk_embed_pass(trunk_, image_input(), options_.height(), options_.width(), taps);
}

std::string Siglip::changing_arguments() const {
  return "the loss exchanges embeddings with all ranks within passes";
}

int64_t Siglip::forward_flops() const {
  const ImageGroup group = images();
  const int64_t head = image_head_.block < 0 ? 0 : 2 * trunk_.width() * dim_;
  return trunk_.forward_flops({&group, 1}) + head + text_.forward_flops() +
         2 * text_.width() * dim_;
}

int64_t Siglip::input_flops() const {
  const ImageGroup group = images();
  return trunk_.trunk().input_flops({&group, 1});
}

// ---------------------------------------------------------------- parts of passes

InputSpec Siglip::image_input() const {
  return {"image", bytes_ ? DType::u8 : DType::f32, options_.height() * options_.width() * 3,
          "image"};
}

std::vector<InputSpec> Siglip::inputs() const {
  return {image_input(), {"labels", DType::i32, options_.seq_len, "labels"}};
}

// Throws Error(Exit::data) for an id outside the vocabulary.
void Siglip::check_ids(const int32_t* ids, int64_t count, const std::string& whose) const {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= options_.vocab_size)
      base::fail(base::Exit::data,
                 "token {} of {} lies outside the vocabulary of {} (model.vocab_size)", ids[i],
                 whose, options_.vocab_size);
}

void Siglip::place_images(nn::Context& ctx, State& state) const {
  const ImageGroup group = images();
  trunk_.place(ctx, {&group, 1}, state.image);
}

void Siglip::embed_images(nn::Context& ctx, View of, View out, int next, State& state) const {
  const ImageGroup group = images(of);
  const bool head = image_head_.block >= 0;
  const View x = trunk_.forward(ctx, {&group, 1}, head ? image_head_.block : next, state.image);
  state.image_features = x;
  if (!head) {
    ctx.run(kernels::Copy{.y = out, .x = x});
    return;
  }
  ForwardBlock weights(ctx, image_head_.block, next);
  image_head_.linear.forward(ctx, x, ctx.batch, out);
}

void Siglip::embed_texts(nn::Context& ctx, View ids, View out, State& state) const {
  const View x = text_.forward(ctx, ids, text_head_.block, state.text);
  state.text_features = x;
  ForwardBlock weights(ctx, text_head_.block, -1);
  text_head_.linear.forward(ctx, x, ctx.batch, out);
}

void Siglip::backward(nn::Context& ctx, std::span<const View> gradients, State& state) const {
  auto through = [&](const Projection& head, View dy, View x, int before) {
    const View dx = ctx.arena.temporary(ctx.batch * head.linear.in);
    backward_block(ctx, head.block, before,
                   [&] { head.linear.backward(ctx, dy, x, ctx.batch, dx); });
    return dx;
  };
  const bool head = image_head_.block >= 0;
  {
    device::Arena::Scope scope(ctx.arena);
    const View d = through(text_head_, gradients[1], state.text_features, text_.last_block());
    text_.backward(ctx, d, head ? image_head_.block : trunk_.last_block(), state.text);
  }
  device::Arena::Scope scope(ctx.arena);
  const View d = head
                     ? through(image_head_, gradients[0], state.image_features, trunk_.last_block())
                     : gradients[0];
  trunk_.backward(ctx, d, state.image);
  ctx.arena.pop_low(state.start);
}

Registered siglip_row() {
  return {"siglip", "images and texts embedded by two towers, compared pair by pair",
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<SiglipOptions>()); },
          [](const config::Table::Variant& options,
             const MemoryOptions& memory) -> std::unique_ptr<Model> {
            return std::make_unique<Siglip>(dynamic_cast<const SiglipOptions&>(options), memory);
          }};
}

}  // namespace models
