// SPDX-License-Identifier: Apache-2.0
// Tokenizers turn text into ids. Registry of kinds: registry.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/registry.hpp"
#include "config/table.hpp"

namespace data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Sets `ids` to the ids of the text, without begin or end. Any thread may call it.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual int64_t vocab_size() const = 0;
  // Return the ids of special pieces; nothing if the tokenizer has no such piece.
  virtual std::optional<int32_t> pad_id() const = 0;
  virtual std::optional<int32_t> end_id() const = 0;
  virtual std::optional<int32_t> piece_id(std::string_view piece) const = 0;
  // Returns a hash of the file that decides the ids; nothing if the keys decide them.
  virtual std::optional<uint64_t> fingerprint() const { return std::nullopt; }
};

// Lowers ASCII letters only, as published; other characters stay.
std::string ascii_lower(std::string text);

// The keys of one kind of tokenizer in [tokenizer.NAME].
struct TokenizerKindOptions : config::Table::Variant {
  virtual std::shared_ptr<const Tokenizer> open() const = 0;
};

struct TokenizerRow {
  std::string name, doc;
  std::shared_ptr<TokenizerKindOptions> (*make_options)();
};
const base::Registry<TokenizerRow>& tokenizer_rows();

// The tokenizers that a deck names. Each is opened at its first use, once for all data sets.
class Tokenizers {
 public:
  Tokenizers() = default;
  explicit Tokenizers(std::map<std::string, std::shared_ptr<const TokenizerKindOptions>> options);
  std::vector<std::string> names() const;
  std::shared_ptr<const Tokenizer> get(const std::string& name) const;
  // Returns the fingerprints of the tokenizers that were opened, by name.
  std::map<std::string, uint64_t> fingerprints() const;

 private:
  struct Entry {
    std::shared_ptr<const TokenizerKindOptions> options;
    mutable std::shared_ptr<const Tokenizer> opened;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

struct SentencepieceOptions : TokenizerKindOptions {
  std::string path;
  void bind(config::Table& t) override;
  std::shared_ptr<const Tokenizer> open() const override;
};

}  // namespace data
