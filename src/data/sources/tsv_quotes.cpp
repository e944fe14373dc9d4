// SPDX-License-Identifier: Apache-2.0
#include "data/sources/tsv_quotes.hpp"

#include <algorithm>

namespace data {
namespace {

constexpr size_t kOpen = std::string_view::npos;

// Returns the number of bytes of the quoted cell at the start of `text`, up to its closing quote;
// kOpen if it has none.
size_t quoted_bytes(std::string_view text) {
  for (size_t at = 1;; at += 2) {
    at = text.find('"', at);
    if (at == text.npos) return kOpen;
    if (at + 1 == text.size() || text[at + 1] != '"') return at + 1;
  }
}

bool begins_next_cell(std::string_view text) {
  return text.empty() || text[0] == '\t' || text[0] == '\n' || text.starts_with("\r\n") ||
         text == "\r";
}

}  // namespace

bool quotes_are_written(std::string_view tsv) {
  if (tsv.find('"') == tsv.npos) return false;
  while (!tsv.empty()) {
    size_t end = std::min(tsv.find_first_of("\t\n"), tsv.size());
    if (tsv[0] == '"') {
      end = quoted_bytes(tsv);
      if (end == kOpen || !begins_next_cell(tsv.substr(end))) return false;
      const std::string_view cell = tsv.substr(0, end);
      if (cell.find('\n') != cell.npos && cell.find('\t') != cell.npos) return false;
    } else if (tsv.substr(0, end).find('"') != tsv.npos) {
      return false;
    }
    tsv.remove_prefix(std::min(end + (end < tsv.size() && tsv[end] != '\r'), tsv.size()));
  }
  return true;
}

std::optional<std::string> unquoted(std::string_view cell) {
  if (!cell.starts_with("\"") || quoted_bytes(cell) != cell.size()) return std::nullopt;
  std::string out;
  bool pairs = false;
  for (size_t i = 1; i + 1 < cell.size(); ++i) {
    out += cell[i];
    if (cell[i] == '"') {
      ++i;
      pairs = true;
    }
  }
  return pairs ? std::optional(out) : std::nullopt;
}

}  // namespace data
