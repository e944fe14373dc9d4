// SPDX-License-Identifier: Apache-2.0
#include "base/path.hpp"

#include <fmt/format.h>

#include <cctype>
#include <cstdlib>

#include "base/text.hpp"

namespace base {
namespace {

constexpr size_t kShown = 120;  // bytes of a path in a message

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// Returns "s3" of "s3://bucket"; "" if the text is no address.
std::string_view scheme_of(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == text.npos || colon == 0 || !is_letter(text[0])) return {};
  for (char c : text.substr(0, colon))
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '+' && c != '-' && c != '.') return {};
  return text.substr(0, colon);
}

// Returns "write \"/home/me/x\"" for "~/x" if the home folder is known.
std::string home_way_out(std::string_view text) {
  const char* home = std::getenv("HOME");
  if (!home || !*home || (text.size() > 1 && text[1] != '/'))
    return "write the path from / on, or from the working directory on";
  return fmt::format("write {}", quoted(fmt::format("{}{}", home, text.substr(1)), kShown));
}

}  // namespace

std::string path_problem(std::string_view text, bool replaces_variables) {
  if (text.starts_with('~'))
    return fmt::format(
        "{} begins with ~, which only a shell replaces: {}; a file with this name is "
        "{}",
        quoted(text, kShown), home_way_out(text), quoted(fmt::format("./{}", text), kShown));
  if (!replaces_variables && text.size() > 1 && text[0] == '$' &&
      (is_letter(text[1]) || text[1] == '_' || text[1] == '{'))
    return fmt::format(
        "{} begins with a variable, which only loader.stage_dir replaces: write the "
        "path itself; a file with this name is {}",
        quoted(text, kShown), quoted(fmt::format("./{}", text), kShown));
  const std::string_view scheme = scheme_of(text);
  if (scheme == "file")
    return fmt::format("{} is an address: write the path alone", quoted(text, kShown));
  if (!scheme.empty())
    return fmt::format(
        "{} is an address, and this program reads and writes files: copy the data "
        "to a file system, or mount it there, and write that path",
        quoted(text, kShown));
  return "";
}

}  // namespace base
