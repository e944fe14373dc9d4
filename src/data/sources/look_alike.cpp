// SPDX-License-Identifier: Apache-2.0
#include "data/sources/look_alike.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "base/text.hpp"
#include "io/files.hpp"

namespace data {
namespace {

// Returns the number of bytes of the first character of `text`; 1 for a byte of another encoding.
size_t character_bytes(std::string_view text) {
  for (size_t n = 2; n <= 4; ++n)
    if (text.size() >= n && base::is_utf8(text.substr(0, n)) && uint8_t(text[0]) >= 0xC0) return n;
  return 1;
}

// Accents, the voicing marks of Japanese, and the vowels and final letters of Korean.
bool is_mark(std::string_view character) {
  if (character.size() == 2) return character >= "\u0300" && character <= "\u036F";
  return character.size() == 3 && (character == "\u3099" || character == "\u309A" ||
                                   (character >= "\u1160" && character <= "\u11FF"));
}

// Returns the number of bytes of the first letter of `text` and the marks behind it.
size_t letter_bytes(std::string_view text) {
  size_t bytes = character_bytes(text);
  while (bytes < text.size()) {
    const size_t more = character_bytes(text.substr(bytes));
    if (!is_mark(text.substr(bytes, more))) break;
    bytes += more;
  }
  return bytes;
}

// True for a letter that another name may write differently.
bool has_other_forms(std::string_view letter) {
  return character_bytes(letter) < letter.size() || !base::is_utf8(letter);
}

bool same_but_for_capitals(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](char x, char y) { return std::tolower(uint8_t(x)) == std::tolower(uint8_t(y)); });
}

}  // namespace

bool look_alike(std::string_view a, std::string_view b) {
  if (a == b) return false;
  while (!a.empty() && !b.empty()) {
    const std::string_view x = a.substr(0, letter_bytes(a)), y = b.substr(0, letter_bytes(b));
    const auto ascii = [](std::string_view letter) {
      return std::ranges::all_of(letter, [](char c) { return uint8_t(c) < 128; });
    };
    if (!same_but_for_capitals(x, y) &&
        (ascii(x) || ascii(y) || !(has_other_forms(x) || has_other_forms(y))))
      return false;
    a.remove_prefix(x.size());
    b.remove_prefix(y.size());
  }
  return a.empty() && b.empty();
}

std::string look_alike_hint(const std::string& missing) {
  const std::filesystem::path path(missing);
  const std::string name = path.filename().native();
  std::error_code problem;
  for (std::filesystem::directory_iterator at(io::parent_of(missing), problem), end;
       !problem && at != end; at.increment(problem)) {
    const std::string other = at->path().filename().native();
    if (!look_alike(name, other)) continue;
    if (same_but_for_capitals(name, other))
      return fmt::format("; {} exists, with other capitals", base::quoted(other));
    return fmt::format(
        "; {} exists and looks the same, in another form of Unicode (NFC, NFD) or another "
        "encoding: rename one of them",
        base::quoted(other));
  }
  return "";
}

}  // namespace data
