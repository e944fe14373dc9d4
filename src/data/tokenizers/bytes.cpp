// SPDX-License-Identifier: Apache-2.0
// Bytes of UTF-8 as ids: no training, no file, and every text has ids. The numbers are ByT5's
// (arXiv 2105.13626): 0 pad, 1 end, 2 unknown (never used), byte b = 3 + b.
#include "base/error.hpp"
#include "data/tokenizers/tokenizer.hpp"

namespace data {
namespace {

constexpr int32_t kFirstByte = 3, kVocabulary = kFirstByte + 256;

class ByteTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    ids.clear();
    for (char c : text) ids.push_back(kFirstByte + uint8_t(c));
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string out;
    for (int32_t id : ids) {
      if (id < 0 || id >= kVocabulary)
        base::fail(base::Exit::data, "id {} is not in [0, {})", id, kVocabulary);
      if (id >= kFirstByte) out += char(id - kFirstByte);
    }
    return out;
  }
  int64_t vocab_size() const override { return kVocabulary; }
  std::optional<int32_t> pad_id() const override { return 0; }
  std::optional<int32_t> end_id() const override { return 1; }
  std::optional<int32_t> piece_id(std::string_view piece) const override {
    if (piece == "<pad>") return 0;
    if (piece == "</s>") return 1;
    if (piece == "<unk>") return 2;
    if (piece.size() == 1) return kFirstByte + uint8_t(piece[0]);
    return std::nullopt;
  }
};

struct ByteOptions : TokenizerKindOptions {
  std::shared_ptr<const Tokenizer> open() const override {
    return std::make_shared<ByteTokenizer>();
  }
};

}  // namespace

TokenizerRow bytes_row() {
  return {
      "bytes", "one id per byte of UTF-8, 259 in all: 0 pad, 1 end, 3 + byte",
      []() -> std::shared_ptr<TokenizerKindOptions> { return std::make_shared<ByteOptions>(); }};
}

}  // namespace data
