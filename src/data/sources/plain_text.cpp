// SPDX-License-Identifier: Apache-2.0
#include "data/sources/plain_text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.hpp"
#include "base/pointer_file.hpp"
#include "base/text.hpp"
#include "data/sources/file.hpp"
#include "data/sources/source.hpp"

namespace data {
namespace {

using base::Exit;

// Returns the number of bytes of the line break at the start of `text`, or 0.
size_t break_at(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] >= '\n' && text[0] <= '\r') return 1;
  if (text.starts_with("\xC2\x85")) return 2;
  return text.starts_with("\xE2\x80\xA8") || text.starts_with("\xE2\x80\xA9") ? 3 : 0;
}

constexpr size_t kSafeDigits = 18;  // whole numbers of 18 digits and a sign fit into 64 bits

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// True if the text may hold a number beyond 64 bits or beyond a double.
bool has_long_numbers(std::string_view text) {
  constexpr size_t kShortExponent = 2;
  size_t digits = 0;  // in a row
  bool exponent = false;
  for (const char c : text) {
    if (is_digit(c)) {
      if (++digits > (exponent ? kShortExponent : kSafeDigits)) return true;
      continue;
    }
    if (c != '+' && c != '-') exponent = (c == 'e' || c == 'E') && digits > 0;
    digits = 0;
  }
  return false;
}

// Returns a number of JSON in a form that any parser reads.
std::string strict_number(std::string_view number) {
  std::string out(number);
  if (const size_t sign = number.starts_with('-');
      std::ranges::all_of(number.substr(sign), is_digit))
    return number.size() - sign > kSafeDigits ? fmt::format("\"{}\"", number) : out;
  return std::isfinite(std::strtod(out.c_str(), nullptr)) ? out : "null";
}

// Returns the number of bytes of NaN, Infinity or -Infinity at the start of `text`, or 0. Only
// Python's JSON has these.
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
  while (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  return text;
}

std::string_view wide_text(std::string_view text) {
  using namespace std::string_view_literals;
  // UTF-32's mark may begin with UTF-16's mark.
  if (text.starts_with("\xFF\xFE\0\0"sv) || text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return "UTF-16";
  if (text.size() < 4) return "";
  // Without a mark, the zero bytes of the first letters show the encoding.
  std::string zeros;
  for (const char c : text.substr(0, 4)) zeros += c == 0 ? '0' : '.';
  if (zeros == ".000" || zeros == "000.") return "UTF-32";
  return zeros == ".0.0" || zeros == "0.0." ? "UTF-16" : "";
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
    base::fail(Exit::data, "'{}' has {} bytes; a file of {} may have at most {}", path, file.size(),
               what, most);
  std::string out(size_t(file.size()), '\0');
  file.read(0, out.data(), out.size());
  out.erase(0, out.size() - without_mark(out).size());
  if (const std::string pointer = base::pointer_problem(out); !pointer.empty())
    base::fail(Exit::data, "'{}': {}", path, pointer);
  if (const std::string_view name = wide_text(out); !name.empty())
    base::fail(Exit::data, "'{}' is {} text: save it as UTF-8", path, name);
  return out;
}

std::vector<std::string> read_list(const std::string& path, std::string_view what) {
  std::string text = read_text_file(path, kMostMemberBytes, what);
  if (const size_t at = text.find('\0'); at != text.npos)
    base::fail(Exit::data, "'{}' holds a zero byte at byte {}: {} are UTF-8 text, one per line",
               path, at, what);
  std::ranges::replace(text, '\r', '\n');
  std::vector<std::string> out;
  for (const std::string& line : base::split(text, '\n'))
    // Joined files have marks in the middle.
    if (const std::string_view entry = base::trim(without_mark(line)); !entry.empty())
      out.emplace_back(entry);
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
      text.find("\\ud") == text.npos && text.find("\\uD") == text.npos && !has_long_numbers(text))
    return out = text;
  out.reserve(text.size());
  bool quoted = false;
  auto take = [&](size_t bytes, std::string_view put) {
    out += put;
    text.remove_prefix(bytes);
  };
  while (!text.empty()) {
    const size_t plain =
        std::min(text.find_first_of(quoted ? "\"\\" : "\"NI-0123456789"), text.size());
    take(plain, text.substr(0, plain));
    if (text.empty()) break;
    if (text[0] == '"') {
      quoted = !quoted;
      take(1, "\"");
    } else if (!quoted) {
      const size_t bytes = python_number(text),
                   number = std::min(text.find_first_not_of("+-.eE0123456789"), text.size());
      if (bytes)
        take(bytes, "null");
      else if (number)
        take(number, strict_number(text.substr(0, number)));
      else
        take(1, text.substr(0, 1));
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
