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

// Returns "s3" of "s3://bucket" and "s3:/bucket"; "" if the text is not an address.
std::string_view scheme_of(std::string_view text) {
  const size_t colon = text.find(":/");
  if (colon == text.npos || colon == 0 || !is_letter(text[0])) return {};
  if (colon == 1 && !text.substr(1).starts_with("://")) return {};  // "C:/x"
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

bool begins_variable(std::string_view text) {
  return text.size() > 1 && text[0] == '$' &&
         (is_letter(text[1]) || text[1] == '_' || text[1] == '{');
}

// True if a part of the path after the first is a variable and no "./" marks the path as literal.
bool has_variable(std::string_view text) {
  if (text.starts_with("./") || text.find("/./") != text.npos) return false;
  if (text.find("${") != text.npos) return true;
  for (size_t at = 0; (at = text.find("/$", at)) != text.npos; ++at)
    if (begins_variable(text.substr(at + 1))) return true;
  return false;
}

}  // namespace

std::string path_problem(std::string_view text, bool replaces_variables) {
  if (std::string problem = name_problem(text);
      !problem.empty() && !(replaces_variables && text.starts_with('$')))
    return problem;
  if (replaces_variables || !has_variable(text)) return "";
  return fmt::format(
      "{} holds a variable, which only loader.stage_dir replaces: write the path itself; a path "
      "with this name is {}",
      quoted(text, kShown),
      quoted(fmt::format("{}{}", text[0] == '/' ? "/." : "./", text), kShown));
}

std::string name_problem(std::string_view text) {
  if (text.starts_with('~'))
    return fmt::format(
        "{} begins with ~, which only a shell replaces: {}; a file with this name is "
        "{}",
        quoted(text, kShown), home_way_out(text), quoted(fmt::format("./{}", text), kShown));
  if (begins_variable(text))
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
