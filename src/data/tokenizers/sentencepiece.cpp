// SPDX-License-Identifier: Apache-2.0
// Tokenizes with SentencePiece models: best segmentation, deterministic.
#include <sentencepiece_processor.h>

#include <filesystem>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "data/formats.hpp"
#include "data/tokenizers/tokenizer.hpp"
#include "io/files.hpp"

namespace data {
namespace {

class Sentencepiece : public Tokenizer {
 public:
  explicit Sentencepiece(const std::string& path) : path_(path) {
    // The library aborts or prints for some unreadable files, so the file is checked first.
    std::error_code problem;
    if (!std::filesystem::is_regular_file(path, problem))
      base::fail(base::Exit::data, "tokenizer model '{}': no such file", path);
    sentencepiece::util::Status status = processor_.Load(path);
    if (!status.ok())
      base::fail(base::Exit::data, "tokenizer model '{}' is not a SentencePiece model: {}", path,
                 status.ToString());
    const std::string bytes = io::read_file(path);
    fingerprint_ = base::xxh3(bytes.data(), bytes.size());
  }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    sentencepiece::util::Status status = processor_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) base::fail(base::Exit::data, "tokenizer '{}': {}", path_, status.ToString());
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string out;
    for (int32_t id : ids)
      if (id < 0 || id >= processor_.GetPieceSize())
        base::fail(base::Exit::data, "tokenizer '{}': id {} is not in [0, {})", path_, id,
                   processor_.GetPieceSize());
    sentencepiece::util::Status status =
        processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &out);
    if (!status.ok()) base::fail(base::Exit::data, "tokenizer '{}': {}", path_, status.ToString());
    return out;
  }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<int32_t> pad_id() const override { return known(processor_.pad_id()); }
  std::optional<int32_t> end_id() const override { return known(processor_.eos_id()); }
  std::optional<int32_t> piece_id(std::string_view piece) const override {
    int id = processor_.PieceToId({piece.data(), piece.size()});
    // PieceToId returns the id of the unknown piece for any piece that it does not have.
    if (processor_.IdToPiece(id) != piece) return std::nullopt;
    return id;
  }

  std::optional<uint64_t> fingerprint() const override { return fingerprint_; }

 private:
  static std::optional<int32_t> known(int id) {
    return id < 0 ? std::nullopt : std::optional<int32_t>(id);
  }
  std::string path_;
  uint64_t fingerprint_ = 0;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

bool built_with_sentencepiece() { return true; }

void SentencepieceOptions::bind(config::Table& t) {
  t.key("path", path, "SentencePiece model file (.model)").required().unit("path");
}

std::shared_ptr<const Tokenizer> SentencepieceOptions::open() const {
  return std::make_shared<Sentencepiece>(path);
}

TokenizerRow sentencepiece_row() {
  return {"sentencepiece", "SentencePiece model; best segmentation",
          []() -> std::shared_ptr<TokenizerKindOptions> {
            return std::make_shared<SentencepieceOptions>();
          }};
}

}  // namespace data
