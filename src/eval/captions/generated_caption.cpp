// SPDX-License-Identifier: Apache-2.0
#include "eval/captions/generated_caption.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace eval {

void CaptioningOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.choice("method", decode.method, models::kDecodeMethodNames,
           "greedy: the most likely token at each position; beam: the caption with the best score "
           "that beam search finds; sample: tokens drawn with their probabilities")
      .on_resume(may);
  t.key("max_length", decode.max_length,
        "tokens of a caption, its end included; 0 = the length of the model's texts")
      .min(0)
      .on_resume(may);
  t.key("beams", decode.beams, "beam: hypotheses of an image").min(1).max(64).on_resume(may);
  t.key("length_penalty", decode.length_penalty,
        "beam: the score of n tokens is their log-likelihood / ((5 + n) / 6)^length_penalty")
      .min(0)
      .on_resume(may);
  t.key("temperature", decode.temperature, "sample: divides the logits").above(0).on_resume(may);
  t.key("top_k", decode.top_k, "sample: only the k most likely tokens; 0 = all")
      .min(0)
      .on_resume(may);
  t.key("top_p", decode.top_p, "sample: only the fewest tokens that have this probability together")
      .above(0)
      .max(1)
      .on_resume(may);
  t.key("seed", seed, "sample: seed of the draws").min(0).on_resume(may);
  t.key("attention", decode.attention,
        "number of first images whose lines also hold tokens and attention: the weights of the "
        "last decoder layer's cross-attention, mean over heads, for each token and patch")
      .min(0)
      .unit("images")
      .on_resume(may);
}

models::DecodeOptions CaptioningOptions::decode_with(const data::Tokenizer& tokenizer) const {
  models::DecodeOptions out = decode;
  out.end_id = *tokenizer.end_id();
  out.seed = uint64_t(seed);
  return out;
}

void check_caption_tokenizer(const data::Tokenizer* tokenizer, const std::string& set) {
  if (!tokenizer)
    base::fail(base::Exit::data,
               "captioning needs a tokenizer to read its tokens, and no op of [data.{}] makes "
               "\"{}\" from text; add tokenize(...) to its preprocessing",
               set, kCaptionField);
  if (!tokenizer->end_id())
    base::fail(base::Exit::data,
               "captioning needs a token that ends captions, and the tokenizer of [data.{}] has "
               "none; use one with an end piece",
               set);
}

std::string text_of(const models::Caption& caption, const data::Tokenizer& tokenizer) {
  std::vector<int32_t> ids = caption.ids;
  // A model may have more ids than its tokenizer; training never shows it the additional ids.
  std::erase_if(ids, [&](int32_t id) { return id >= tokenizer.vocab_size(); });
  return tokenizer.decode(ids);
}

namespace {

// Returns the text that each id adds to the caption.
std::vector<std::string> pieces_of(const std::vector<int32_t>& ids,
                                   const data::Tokenizer& tokenizer) {
  std::vector<std::string> out;
  std::vector<int32_t> known;
  std::string before;
  for (int32_t id : ids) {
    if (id >= tokenizer.vocab_size()) {
      out.push_back(fmt::format("#{}", id));
      continue;
    }
    known.push_back(id);
    const std::string now = tokenizer.decode(known);
    // A character of several tokens may appear only with its last token.
    out.push_back(now.starts_with(before) ? now.substr(before.size())
                                          : tokenizer.decode(std::span(&known.back(), 1)));
    before = now;
  }
  return out;
}

}  // namespace

std::string attention_json(const models::Caption& caption, const data::Tokenizer& tokenizer,
                           std::pair<int64_t, int64_t> grid) {
  using Json = nlohmann::ordered_json;
  CHECK(int64_t(caption.attention.size()) == int64_t(caption.ids.size()) * grid.first * grid.second,
        "{} weights of {} tokens on {} x {} patches", caption.attention.size(), caption.ids.size(),
        grid.first, grid.second);
  Json attention = Json::array();
  const float* weight = caption.attention.data();
  for (size_t t = 0; t < caption.ids.size(); ++t) {
    Json rows = Json::array();
    for (int64_t y = 0; y < grid.first; ++y) {
      Json row = Json::array();
      for (int64_t x = 0; x < grid.second; ++x)
        row.push_back(std::stod(fmt::format("{:.3g}", *weight++)));
      rows.push_back(std::move(row));
    }
    attention.push_back(std::move(rows));
  }
  const Json out{{"tokens", pieces_of(caption.ids, tokenizer)},
                 {"attention", std::move(attention)}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace eval
