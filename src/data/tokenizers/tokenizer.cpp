// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizers/tokenizer.hpp"

#include "base/error.hpp"

namespace data {

std::string ascii_lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}

Tokenizers::Tokenizers(std::map<std::string, std::shared_ptr<const TokenizerKindOptions>> options) {
  for (auto& [name, of_name] : options) entries_[name].options = std::move(of_name);
}

std::vector<std::string> Tokenizers::names() const {
  std::vector<std::string> out;
  for (auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

std::shared_ptr<const Tokenizer> Tokenizers::get(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto it = entries_.find(name);
  CHECK(it != entries_.end() && it->second.options, "tokenizer '{}' is not known", name);
  if (!it->second.opened) it->second.opened = it->second.options->open();
  return it->second.opened;
}

std::map<std::string, uint64_t> Tokenizers::fingerprints() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, uint64_t> out;
  for (const auto& [name, entry] : entries_)
    if (const std::optional<uint64_t> print =
            entry.opened ? entry.opened->fingerprint() : std::nullopt)
      out[name] = *print;
  return out;
}

}  // namespace data
