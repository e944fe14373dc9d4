// SPDX-License-Identifier: Apache-2.0
// Replaces sentencepiece.cpp in programs without SentencePiece. Decks that name such a tokenizer
// are refused when they are read.
#include "base/error.hpp"
#include "data/formats.hpp"
#include "data/tokenizers/tokenizer.hpp"

namespace data {
namespace {
constexpr const char* kAbsent =
    "this program was built without SentencePiece (TRAINER_WITHOUT): build it with SentencePiece, "
    "or use kind = \"bytes\"";
}

bool built_with_sentencepiece() { return false; }

void SentencepieceOptions::bind(config::Table& t) {
  t.key("path", path, "SentencePiece model file (.model)").required().unit("path").check([] {
    return std::string(kAbsent);
  });
}

std::shared_ptr<const Tokenizer> SentencepieceOptions::open() const {
  base::fail(base::Exit::config, "tokenizer model '{}': {}", path, kAbsent);
}

TokenizerRow sentencepiece_row() {
  return {"sentencepiece", "SentencePiece model, which this program was built without",
          []() -> std::shared_ptr<TokenizerKindOptions> {
            return std::make_shared<SentencepieceOptions>();
          }};
}

}  // namespace data
