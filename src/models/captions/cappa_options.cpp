// SPDX-License-Identifier: Apache-2.0
#include "models/captions/cappa_options.hpp"

#include <fmt/format.h>

namespace models {
namespace {

// Checks the ViT of [model.encoder], and the decoder, whose sizes default to the ViT's.
void check_encoder(config::Table& t, const CappaOptions& o) {
  if (o.encoder.patch > 0 && (o.height() % o.encoder.patch || o.width() % o.encoder.patch))
    t.error("image_size", fmt::format("{} is not divisible by model.encoder.patch = {}",
                                      o.image_size, o.encoder.patch));
  // A decoder without its own width and heads has the encoder's, whose check reports the problem.
  const bool own = o.decoder.heads > 0 || o.decoder.width > 0;
  if (own && o.decoder_heads() > 0 && o.decoder_width() % o.decoder_heads())
    t.error(o.decoder.heads > 0 ? "decoder.heads" : "decoder.width",
            fmt::format("width = {}{} is not divisible by heads = {}{}", o.decoder_width(),
                        o.decoder.width > 0 ? "" : " (of model.encoder)", o.decoder_heads(),
                        o.decoder.heads > 0
                            ? ""
                            : " (of model.encoder; model.decoder.heads sets another number)"));
  if (!o.learned_positions && (o.encoder.width % 4 || o.decoder_width() % 4))
    t.error("posemb", fmt::format("sincos2d needs widths divisible by 4; model.{} is {}",
                                  o.encoder.width % 4 ? "encoder.width" : "decoder.width",
                                  o.encoder.width % 4 ? o.encoder.width : o.decoder_width()));
}

// Checks a model with [model.trunk]. Its decoder must have sizes of its own.
void check_trunk(config::Table& t, const CappaOptions& o) {
  if (t.has("encoder"))
    t.error("encoder", "model.trunk is the image encoder; leave out one of the two tables");
  for (const auto& [key, value] : {std::pair{"decoder.width", o.decoder.width},
                                   {"decoder.mlp", o.decoder.mlp},
                                   {"decoder.heads", o.decoder.heads}})
    if (value == 0) t.error(key, "missing; beside model.trunk the decoder needs its own sizes");
  if (o.decoder.heads > 0 && o.decoder.width % o.decoder.heads)
    t.error("decoder.heads", fmt::format("width = {} is not divisible by heads = {}",
                                         o.decoder.width, o.decoder.heads));
  if (!o.learned_positions && o.decoder.width % 4)
    t.error("posemb", fmt::format("sincos2d needs widths divisible by 4; model.decoder.width is {}",
                                  o.decoder.width));
  if (!o.trunk->options) return;
  const TrunkKeys& keys = o.trunk->keys();
  if (const std::string problem = keys.image_problem(o.height(), o.width()); !problem.empty())
    t.error("image_size", problem);
  if (const std::string problem = keys.token_problem(); !problem.empty()) t.error("trunk", problem);
}

}  // namespace

void DecoderOptions::bind(config::Table& t) {
  auto never = config::OnResume::never;
  t.key("depth", depth, "transformer blocks").min(1).max(1000).on_resume(never);
  t.key("width", width, "embedding width; 0 = the encoder's").min(0).max(65536).on_resume(never);
  t.key("mlp", mlp, "hidden width of the MLPs; 0 = the encoder's")
      .min(0)
      .max(1 << 20)
      .on_resume(never);
  t.key("heads", heads, "attention heads; 0 = the encoder's").min(0).max(1024).on_resume(never);
  t.key("bias", bias, "biases in the blocks' layer norms and MLPs").on_resume(never);
  t.key("dropout", dropout, "dropout rate, on attention weights too").min(0).max(0.99);
}

void CappaOptions::bind(config::Table& t) {
  auto never = config::OnResume::never;
  bind_image_size(t, image_size);
  t.key("vocab_size", vocab_size,
        "width of the logits; the embedding has one row more, the mask token, if masked_pred_prob "
        "> 0")
      .required()
      .min(2)
      .max(1 << 24)
      .on_resume(never);
  t.key("seq_len", seq_len, "tokens of a caption, padding included")
      .min(1)
      .max(65536)
      .unit("tokens")
      .on_resume(never);
  t.choice("posemb", learned_positions, {{"learn", true}, {"sincos2d", false}},
           "position tables of encoder and decoder; beside model.trunk, of the decoder alone")
      .on_resume(never);
  t.key("masked_pred_prob", masked_pred_prob,
        "share of the examples predicted in parallel; 0 = Cap")
      .min(0)
      .max(1);
  t.key("masking_ratio", masking_ratio,
        "share of a parallel example's input tokens that are masked")
      .min(0)
      .max(1);
  t.key("label_smoothing", label_smoothing, "share of the target given to all other tokens")
      .min(0)
      .max(0.99);
  t.key("keep_ratio", keep_ratio,
        "share of an image's tokens that the decoder reads in training, drawn for each example "
        "(arXiv 2509.01644); evaluations read all")
      .above(0)
      .max(1);
  t.key("pad_id", pad_id, "id of padding; labels with this id have no loss").min(0);
  t.key("logits_mb", logits_mb, "largest chunk of the [tokens, vocabulary] logits")
      .min(1)
      .unit("MiB")
      .on_resume(config::OnResume::may_change);
  t.key("pack_text", pack_text,
        "compute only the text positions that the loss depends on; false computes all of them: the "
        "same results, for comparison")
      .on_resume(config::OnResume::may_change);
  if (pad_id >= vocab_size)
    t.error("pad_id", fmt::format("{} lies outside the vocabulary: model.vocab_size = {}", pad_id,
                                  vocab_size));
  t.optional_table("trunk", trunk,
                   "the image encoder; a captioner without this table has the ViT of "
                   "model.encoder");
  if (!trunk) t.table("encoder", encoder, "the ViT");
  t.table("decoder", decoder, "the caption decoder; width, mlp and heads default to the encoder's");
  if (trunk)
    check_trunk(t, *this);
  else
    check_encoder(t, *this);
  if (masked() && masking_ratio == 0)
    t.error("masking_ratio",
            "0 with masked_pred_prob > 0 would make parallel examples copy their input; set "
            "masked_pred_prob = 0 for Cap");
  else if (masked() && masked_tokens() == 0)
    t.error("masking_ratio", fmt::format("{:g} of seq_len = {} tokens masks none of them; use more "
                                         "than {:g}, or set masked_pred_prob = 0 for Cap",
                                         masking_ratio, length(), 1.0 / double(length())));
}

std::shared_ptr<const TrunkKeys> CappaOptions::trunk_keys() const {
  if (trunk) return std::dynamic_pointer_cast<const TrunkKeys>(trunk->options);
  auto vit = std::make_shared<VitTrunkOptions>();
  vit->size = encoder;
  vit->positions = learned_positions ? Positions::learned : Positions::fixed;
  return vit;
}

DecoderConfig CappaOptions::decoder_config(int64_t memory_length, int64_t memory_width) const {
  return {.depth = decoder.depth,
          .width = decoder_width(),
          .mlp = decoder_mlp(),
          .heads = decoder_heads(),
          .bias = decoder.bias,
          .dropout = float(decoder.dropout),
          .memory_length = memory_length,
          .memory_width = memory_width,
          .length = length(),
          .position_rows = seq_len,
          .embedding_rows = embedding_rows(),
          .learned_positions = learned_positions};
}

HeadConfig CappaOptions::head() const {
  return {.width = decoder_width(),
          .vocabulary = vocab_size,
          .length = length(),
          .logits_mb = logits_mb,
          .smoothing = float(label_smoothing)};
}

}  // namespace models
