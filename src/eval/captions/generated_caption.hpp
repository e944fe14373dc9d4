// SPDX-License-Identifier: Apache-2.0
// Captions that a model generates: the keys of generation, and the form of captions in JSON lines.
// The evaluator `captioning` and --mode caption share them.
#pragma once

#include <string>
#include <utility>

#include "config/table.hpp"
#include "data/tokenizers/tokenizer.hpp"
#include "models/captioner.hpp"

namespace eval {

constexpr const char* kCaptionField = "labels";  // the field of ids

// [eval.NAME] kind = "captioning", and a part of [caption].
struct CaptioningOptions : config::Table::Variant {
  models::DecodeOptions decode;
  int64_t seed = 0;
  void bind(config::Table& t) override;
  models::CaptionLimits limits() const {
    return {decode.places(), decode.max_length, decode.attention > 0};
  }
  // Returns the options with the seed and with this tokenizer's end token.
  models::DecodeOptions decode_with(const data::Tokenizer& tokenizer) const;
};

// Checks that the ids of [data.NAME] can become captions. Error(Exit::data) without a tokenizer, or
// if it has no end piece.
void check_caption_tokenizer(const data::Tokenizer* tokenizer, const std::string& set);

// Returns the text of a caption. Ids that the tokenizer lacks are left out.
std::string text_of(const models::Caption& caption, const data::Tokenizer& tokenizer);

// Returns the JSON object {"tokens": ["a", " red", ..], "attention": [[[0.0123, ..], ..], ..]} with
// the texts of the ids and Caption::attention [tokens, grid height, grid width], rounded to 3
// digits. Joined tokens give the caption, except for ids that the tokenizer lacks ("#1234").
std::string attention_json(const models::Caption& caption, const data::Tokenizer& tokenizer,
                           std::pair<int64_t, int64_t> grid);

}  // namespace eval
