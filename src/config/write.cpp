// SPDX-License-Identifier: Apache-2.0
#include "config/write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace config {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

template <class Map>
std::string inline_table(const Map& map, std::string (*text)(const typename Map::mapped_type&)) {
  if (map.empty()) return "{}";
  std::string out;
  for (const auto& [name, value] : map)
    out += fmt::format("{}{} = {}", out.empty() ? "{ " : ", ", toml_key(name), text(value));
  return out + " }";
}

template <class List, class Text>
std::string inline_list(const List& list, Text text) {
  std::string out = "[";
  for (size_t i = 0; i < list.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", text(list[i]));
  return out + "]";
}

}  // namespace

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (is_control(c))
      out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + '"';
}

std::string toml_long_string(std::string_view text) {
  bool newline = false, escapes = false, control = false;
  for (char c : text) {
    newline = newline || c == '\n';
    escapes = escapes || c == '"' || c == '\\';
    control = control || (is_control(c) && c != '\n' && c != '\t');
  }
  if (!control && newline && text.find("'''") == text.npos) return fmt::format("'''\n{}'''", text);
  if (!control && !newline && escapes && text.find('\'') == text.npos)
    return fmt::format("'{}'", text);
  return toml_string(text);
}

std::string toml_key(std::string_view name) {
  bool bare = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  return bare ? std::string(name) : toml_string(name);
}

std::string toml_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string plain_number(double value) { return fmt::format("{}", value); }

namespace {
std::string suffix_of(const Duration& value) {
  for (const Spelling& s : duration_spellings)
    if (s.unit == value.unit) return s.suffix;
  return {};
}
}  // namespace

std::string duration_key(std::string_view name, const Duration& value) {
  return std::string(name) + suffix_of(value);
}

std::string plain_value(const Value& value) {
  const Duration* duration = std::get_if<Duration>(&value);
  if (!duration || is_input(*duration)) return toml_value(value);
  return duration->set() ? fmt::format("{} {}", toml_value(value), suffix_of(*duration).substr(1))
                         : "unset";
}

std::string toml_value(const Value& value) {
  struct Text {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return toml_number(v); }
    std::string operator()(const std::string& v) const { return toml_string(v); }
    std::string operator()(const std::vector<std::string>& v) const {
      return inline_list(v, toml_string);
    }
    std::string operator()(const std::vector<int64_t>& v) const {
      if (is_all(v)) return toml_string(kAll);
      return inline_list(v, [](int64_t x) { return fmt::format("{}", x); });
    }
    std::string operator()(const std::vector<double>& v) const {
      return inline_list(v, toml_number);
    }
    std::string operator()(const std::map<std::string, std::string>& v) const {
      return inline_table(
          v, +[](const std::string& x) { return toml_string(x); });
    }
    std::string operator()(const std::map<std::string, double>& v) const {
      return inline_table(
          v, +[](const double& x) { return toml_number(x); });
    }
    std::string operator()(const Duration& v) const {
      if (is_input(v)) return toml_string(kInput);
      bool whole = v.unit == Duration::Unit::steps || v.unit == Duration::Unit::examples;
      return whole ? fmt::format("{:.0f}", v.value) : toml_number(v.value);
    }
  };
  return std::visit(Text(), value);
}

std::string printable(std::string_view text, size_t most) {
  bool cut = text.size() > most;
  if (cut) {
    while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
    text = text.substr(0, most);
  }
  std::string out;
  for (char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (is_control(c))
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return cut ? out + "..." : out;
}

std::string quoted(std::string_view text) { return fmt::format("\"{}\"", printable(text)); }

}  // namespace config
