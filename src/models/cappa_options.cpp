// SPDX-License-Identifier: Apache-2.0
#include "models/cappa_options.hpp"

#include <fmt/format.h>

namespace models {

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
  t.key("image_size", image_size,
        "height and width of the images, checked against what `preprocess` yields")
      .min(1)
      .max(16384)
      .unit("pixels")
      .on_resume(never);
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
           "position tables of encoder and decoder")
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
  t.key("pad_id", pad_id, "labels equal to this carry no loss").min(0);
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
  t.table("encoder", encoder, "the ViT");
  t.table("decoder", decoder, "the caption decoder; width, mlp and heads default to the encoder's");
  if (encoder.patch > 0 && (height() % encoder.patch || this->width() % encoder.patch))
    t.error("image_size", fmt::format("{} is not divisible by model.encoder.patch = {}", image_size,
                                      encoder.patch));
  // A decoder without its own width and heads has the encoder's, which has reported the problem.
  const bool own = decoder.heads > 0 || decoder.width > 0;
  if (own && decoder_heads() > 0 && decoder_width() % decoder_heads())
    t.error(decoder.heads > 0 ? "decoder.heads" : "decoder.width",
            fmt::format("width = {}{} is not divisible by heads = {}{}", decoder_width(),
                        decoder.width > 0 ? "" : " (of model.encoder)", decoder_heads(),
                        decoder.heads > 0
                            ? ""
                            : " (of model.encoder; model.decoder.heads sets another number)"));
  if (!learned_positions && (encoder.width % 4 || decoder_width() % 4))
    t.error("posemb", fmt::format("sincos2d needs widths divisible by 4; model.{} is {}",
                                  encoder.width % 4 ? "encoder.width" : "decoder.width",
                                  encoder.width % 4 ? encoder.width : decoder_width()));
  if (masked() && masking_ratio == 0)
    t.error("masking_ratio",
            "0 with masked_pred_prob > 0 would make parallel examples copy their input; set "
            "masked_pred_prob = 0 for Cap");
  else if (masked() && masked_tokens() == 0)
    t.error("masking_ratio", fmt::format("{:g} of seq_len = {} tokens masks none of them; use more "
                                         "than {:g}, or set masked_pred_prob = 0 for Cap",
                                         masking_ratio, length(), 1.0 / double(length())));
}

VitConfig CappaOptions::vit() const {
  return vit_config(encoder, height(), width(), learned_positions);
}

DecoderConfig CappaOptions::decoder_config() const {
  return {.depth = decoder.depth,
          .width = decoder_width(),
          .mlp = decoder_mlp(),
          .heads = decoder_heads(),
          .bias = decoder.bias,
          .dropout = float(decoder.dropout),
          .memory_length = patches(),
          .memory_width = encoder.width,
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
