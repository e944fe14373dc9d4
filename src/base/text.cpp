// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace base {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = int(i + j);
        continue;
      }
      int cost = a[i - 1] != b[j - 1];
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  // No known name is longer. The distance takes time and memory proportional to the product of both
  // lengths.
  constexpr size_t kLongest = 100;
  if (name.size() > kLongest) return {};
  int best = 1 + int(name.size()) / 3 + 1;
  std::string found;
  for (const std::string& c : candidates)
    if (int d = edit_distance(name, c); d < best) {
      best = d;
      found = c;
    }
  return found;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i) out += separator;
    out += parts[i];
  }
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(separator, begin), text.size());
    out.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::string_view trim(std::string_view text) {
  size_t b = text.find_first_not_of(" \t\r\n");
  if (b == std::string_view::npos) return {};
  return text.substr(b, text.find_last_not_of(" \t\r\n") - b + 1);
}

// RFC 3629: each character in its shortest form, no half of a surrogate pair, nothing above
// U+10FFFF.
bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    auto byte = [&](size_t i) {
      return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    unsigned first = byte(at), second = byte(at + 1);
    size_t length = first < 0x80       ? 1
                    : first >> 5 == 6  ? 2
                    : first >> 4 == 14 ? 3
                    : first >> 3 == 30 ? 4
                                       : 0;
    if (length == 0) return false;
    for (size_t i = 1; i < length; ++i)
      if (byte(at + i) >> 6 != 2) return false;
    const bool overlong = (length == 2 && first < 0xC2) || (first == 0xE0 && second < 0xA0) ||
                          (first == 0xF0 && second < 0x90);
    const bool surrogate = first == 0xED && second >= 0xA0;
    const bool too_large = first > 0xF4 || (first == 0xF4 && second >= 0x90);
    if (overlong || surrogate || too_large) return false;
    at += length;
  }
  return true;
}

std::string one_line(std::string_view text, size_t longest) {
  std::string out(text.substr(0, longest));
  // If the cut splits a character, its first bytes are removed too.
  if (longest < text.size())
    while (!out.empty() && static_cast<unsigned char>(text[out.size()]) >> 6 == 2) out.pop_back();
  bool known = is_utf8(out);
  // Bytes are escaped, not dropped, so that two names cannot become equal.
  std::string line;
  for (char c : out) {
    unsigned char byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte == 127 || (byte >= 128 && !known))
      line += fmt::format("\\x{:02x}", byte);
    else
      line += c;
  }
  return line;
}

std::string quoted(std::string_view text, size_t longest) {
  bool cut = text.size() > longest;
  if (cut) {
    // The first removed byte must begin a character.
    while (longest > 0 && static_cast<unsigned char>(text[longest]) >> 6 == 2) --longest;
    text = text.substr(0, longest);
  }
  bool known = is_utf8(text);
  std::string out = "\"";
  for (char c : text) {
    unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\t' || c == '\r')
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
    else if (byte < ' ' || byte == 127 || (byte >= 128 && !known))
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + (cut ? "\"..." : "\"");
}

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value < 0 ? -value : value), out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return value < 0 ? "-" + out : out;
}

std::string hms(double seconds) {
  if (seconds < 60) return fmt::format("{:.0f}s", seconds);  // 59.6 is "60s", as published
  // Seconds are rounded before the split into units: 8 min 59.6 s is "9m0s", not "8m60s".
  seconds = std::round(seconds);
  double minutes = std::floor(seconds / 60);
  if (minutes < 60) return fmt::format("{:.0f}m{:.0f}s", minutes, std::fmod(seconds, 60));
  double hours = std::floor(minutes / 60);
  if (hours < 25) return fmt::format("{:.0f}h{:.0f}m", hours, std::fmod(minutes, 60));
  return fmt::format("{:.0f}d{:.0f}h{:.0f}m", std::floor(hours / 24), std::fmod(hours, 24),
                     std::fmod(minutes, 60));
}

std::string mebibytes(int64_t bytes) { return with_commas((bytes + (1 << 20) - 1) >> 20); }

}  // namespace base
