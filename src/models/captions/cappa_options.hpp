// SPDX-License-Identifier: Apache-2.0
// Keys of [model] kind = "cappa" (cappa.md 1.1).
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "base/fused.hpp"
#include "config/table.hpp"
#include "models/decoders/caption_decoder.hpp"
#include "models/decoders/caption_head.hpp"
#include "models/trunks/vit_options.hpp"

namespace models {

struct DecoderOptions {
  int64_t depth = 6, width = 0, mlp = 0, heads = 0;  // 0 = the encoder's
  bool bias = false;
  double dropout = 0;
  void bind(config::Table& t);
};

// The keys of the table. There are many members because each key has one, named as in the deck.
struct CappaOptions : config::Table::Variant {
  // Height and width. Tests with images that are not square set image_height and image_width.
  int64_t image_size = 224;
  int64_t image_height = 0, image_width = 0;
  int64_t vocab_size = 32000, seq_len = 64;
  int64_t text_len = 0;  // at most seq_len, 0 = seq_len; set by tests, not a key
  bool learned_positions = true;
  double masked_pred_prob = 0.75, masking_ratio = 1.0;
  double label_smoothing = 0;
  double keep_ratio = 1;
  int64_t pad_id = 0;
  int64_t logits_mb = 1024;
  bool pack_text = true;
  EncoderOptions encoder;             // a ViT
  std::optional<TrunkOptions> trunk;  // replaces `encoder`
  DecoderOptions decoder;
  void bind(config::Table& t) override;

  int64_t height() const { return image_height ? image_height : image_size; }
  int64_t width() const { return image_width ? image_width : image_size; }
  int64_t length() const { return text_len ? text_len : seq_len; }
  int64_t decoder_width() const { return decoder.width ? decoder.width : encoder.width; }
  int64_t decoder_mlp() const { return decoder.mlp ? decoder.mlp : encoder.mlp; }
  int64_t decoder_heads() const { return decoder.heads ? decoder.heads : encoder.heads; }
  bool masked() const { return masked_pred_prob > 0; }
  // Returns the number of masked tokens of a parallel example.
  int64_t masked_tokens() const { return int64_t(masking_ratio * double(length())); }
  // Returns the number of an image's tokens that the decoder reads in training.
  int64_t kept_tokens(int64_t tokens) const {
    return std::max(int64_t{1}, int64_t(base::fused(keep_ratio, double(tokens), 0.5)));
  }
  int64_t embedding_rows() const { return vocab_size + (masked() ? 1 : 0); }
  // The configurations of the model's parts.
  std::shared_ptr<const TrunkKeys> trunk_keys() const;
  // memory_length, memory_width: tokens of an image, and their width.
  DecoderConfig decoder_config(int64_t memory_length, int64_t memory_width) const;
  HeadConfig head() const;
};

}  // namespace models
