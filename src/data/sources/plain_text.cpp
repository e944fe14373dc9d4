// SPDX-License-Identifier: Apache-2.0
#include "data/sources/plain_text.hpp"

#include <algorithm>
#include <charconv>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/sources/file.hpp"
#include "data/sources/source.hpp"

namespace data {
namespace {

using base::Exit;

// Returns the bytes of the line break that `text` begins with; 0 if it begins with none.
size_t break_at(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] >= '\n' && text[0] <= '\r') return 1;
  if (text.starts_with("\xC2\x85")) return 2;
  return text.starts_with("\xE2\x80\xA8") || text.starts_with("\xE2\x80\xA9") ? 3 : 0;
}

// Returns the bytes of the number that `text` begins with and that only Python's JSON has, or 0.
size_t python_number(std::string_view text) {
  for (std::string_view word : {"NaN", "Infinity", "-Infinity"})
    if (text.starts_with(word)) return word.size();
  return 0;
}

// True if `text` begins with the escape of a surrogate, \uDxyz, whose x is one of `digits`.
bool is_surrogate(std::string_view text, std::string_view digits) {
  return text.size() >= 6 && (text.starts_with("\\ud") || text.starts_with("\\uD")) &&
         digits.find(text[3]) != digits.npos;
}

}  // namespace

std::string_view without_mark(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  return text;
}

std::string_view wide_text(std::string_view text) {
  using namespace std::string_view_literals;
  // UTF-32's mark may begin with that of UTF-16.
  if (text.starts_with("\xFF\xFE\0\0"sv) || text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF") ? "UTF-16" : "";
}

std::string on_one_line(std::string_view text) {
  std::string out;
  bool broken = false;
  while (!text.empty()) {
    if (const size_t bytes = break_at(text)) {
      broken = true;
      text.remove_prefix(bytes);
      continue;
    }
    if (broken && !out.empty()) out += ' ';
    broken = false;
    const size_t end = std::min(text.find_first_of("\n\v\f\r\xC2\xE2", 1), text.size());
    out += text.substr(0, end);
    text.remove_prefix(end);
  }
  return out;
}

std::string read_text_file(const std::string& path, int64_t most, std::string_view what) {
  const File file(path);
  if (file.size() > most)
    base::fail(Exit::data, "'{}' has {} bytes; {} of at most {} are read", path, file.size(), what,
               most);
  std::string out(size_t(file.size()), '\0');
  file.read(0, out.data(), out.size());
  out.erase(0, out.size() - without_mark(out).size());
  if (const std::string_view name = wide_text(out); !name.empty())
    base::fail(Exit::data, "'{}' is {} text: save it as UTF-8", path, name);
  return out;
}

std::vector<std::string> read_list(const std::string& path, std::string_view what) {
  std::string text = read_text_file(path, kMostMemberBytes, what);
  std::ranges::replace(text, '\r', '\n');
  std::vector<std::string> out;
  for (const std::string& line : base::split(text, '\n'))
    if (const std::string_view entry = base::trim(line); !entry.empty()) out.emplace_back(entry);
  return out;
}

std::optional<int32_t> whole_number(std::string_view text) {
  text = base::trim(text);
  if (const size_t dot = text.find('.');
      dot != text.npos && dot > 0 && text.find_first_not_of('0', dot + 1) == text.npos)
    text = text.substr(0, dot);
  int32_t number = 0;
  auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string strict_json(std::string_view text) {
  std::string out;
  if (text.find("NaN") == text.npos && text.find("Infinity") == text.npos &&
      text.find("\\ud") == text.npos && text.find("\\uD") == text.npos)
    return out = text;
  out.reserve(text.size());
  bool quoted = false;
  auto take = [&](size_t bytes, std::string_view put) {
    out += put;
    text.remove_prefix(bytes);
  };
  while (!text.empty()) {
    const size_t plain = std::min(text.find_first_of(quoted ? "\"\\" : "\"NI-"), text.size());
    take(plain, text.substr(0, plain));
    if (text.empty()) break;
    if (text[0] == '"') {
      quoted = !quoted;
      take(1, "\"");
    } else if (!quoted) {
      const size_t bytes = python_number(text);
      bytes ? take(bytes, "null") : take(1, text.substr(0, 1));
    } else if (is_surrogate(text, "89abAB") && is_surrogate(text.substr(6), "cdefCDEF")) {
      take(12, text.substr(0, 12));
    } else if (is_surrogate(text, "89abcdefABCDEF")) {
      take(6, "\\ufffe\\uffff\\ufffe");
    } else {
      const size_t bytes = std::min<size_t>(2, text.size());
      take(bytes, text.substr(0, bytes));
    }
  }
  return out;
}

}  // namespace data
