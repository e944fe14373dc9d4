// SPDX-License-Identifier: Apache-2.0
// Tokenizes captions. The first byte selects the tokenizer and the arguments of its op.
#include <algorithm>

#include "data/ops/pipeline.hpp"
#include "targets.hpp"

namespace fuzz {
namespace {

constexpr int64_t kLength = 12;

const data::Tokenizers& tokenizers() {
  static const data::Tokenizers all = [] {
    auto model = [](const char* path) {
      auto options = std::make_shared<data::SentencepieceOptions>();
      options->path = path;
      return options;
    };
    return data::Tokenizers({{"bytes", data::tokenizer_rows().at("bytes").make_options()},
                             {"unigram", model(TRAINER_GOLDEN_DIR "/tokenizer/unigram.model")},
                             {"bpe", model(TRAINER_GOLDEN_DIR "/tokenizer/bpe.model")}});
  }();
  return all;
}

struct Call {
  std::string tokenizer, end;
  bool prefix;
  data::Pipeline pipeline;
};

std::vector<Call> calls() {
  std::vector<Call> out;
  for (std::string name : {"bytes", "unigram", "bpe"})
    for (std::string end : {"none", "yes", "sticky"})
      for (bool prefix : {false, true}) {
        std::string text =
            fmt::format("tokenize('{}', max_len={}, eos='{}', lower={}{})", name, kLength, end,
                        end == "yes" ? "False" : "True", prefix ? ", prefix='a: '" : "");
        out.push_back(
            {name,
             end,
             prefix,
             {text, {{"text", data::FieldSpec::characters()}}, {.tokenizers = &tokenizers()}}});
      }
  return out;
}

}  // namespace

void tokenizer(std::string_view input) {
  static const std::vector<Call> all = calls();
  if (input.empty()) return;
  const Call& call = all[uint8_t(input[0]) % all.size()];
  std::shared_ptr<const data::Tokenizer> model = tokenizers().get(call.tokenizer);
  std::string text(input.substr(1));

  data::Sample sample{{"text", text}};
  call.pipeline.apply(sample, 0);
  for (auto& [name, field] : call.pipeline.spec())
    expect(data::mismatch(field, sample.at(name)).empty(), "a field does not match its spec");
  const data::Array& labels = std::get<data::Array>(sample.at("labels"));
  std::vector<int32_t> ids(labels.i32(), labels.i32() + labels.count());
  for (int32_t id : ids)
    expect(id >= 0 && id < model->vocab_size(), "an id outside the vocabulary");
  if (call.end == "sticky")
    expect(std::find(ids.begin(), ids.end(), *model->end_id()) != ids.end(),
           "a sticky end is missing");
  model->decode(ids);

  // Every id of the whole text must have a meaning, and the bytes tokenizer must give the text
  // back.
  std::vector<int32_t> whole;
  model->encode(text, whole);
  std::string back = model->decode(whole);
  if (call.tokenizer == "bytes")
    expect(back == text, "the bytes tokenizer does not give the text back");
  if (!text.empty()) model->piece_id(text);
}

}  // namespace fuzz
