// SPDX-License-Identifier: Apache-2.0
#include "base/plain_nan.hpp"

#include <cctype>

namespace base {
namespace {

// True for a character that may come right before or after a number.
bool ends_number(char c) {
  return !std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.' &&
         c != '/';
}

}  // namespace

std::string plain_nan(std::string text) {
  constexpr std::string_view kNan = "-nan";
  for (size_t at = text.find(kNan); at != text.npos; at = text.find(kNan, at + 1)) {
    const size_t end = at + kNan.size();
    const bool before = at == 0 || ends_number(text[at - 1]);
    // A number may end a sentence.
    const bool after = end == text.size() || ends_number(text[end]) ||
                       (text[end] == '.' && (end + 1 == text.size() || text[end + 1] == ' '));
    if (before && after) text.erase(at, 1);
  }
  return text;
}

}  // namespace base
