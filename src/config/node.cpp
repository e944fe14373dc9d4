// SPDX-License-Identifier: Apache-2.0
#include "config/node.hpp"

#include <fmt/format.h>

#include <cctype>

#include "config/write.hpp"

namespace config {

std::string found(const Node& node) {
  switch (node.kind) {
    case Node::Kind::boolean:
      return fmt::format("the boolean {}", node.boolean);
    case Node::Kind::integer:
      return fmt::format("the integer {}", node.integer);
    case Node::Kind::real:
      return fmt::format("the number {}", toml_number(node.real));
    case Node::Kind::string:
      return fmt::format("the string {}", quoted(node.string));
    case Node::Kind::date:
      return "a date or time";
    case Node::Kind::array:
      return !node.items.empty() && node.items[0].is_table() ? "a list of tables" : "a list";
    case Node::Kind::table:
      return "a table";
  }
  return {};
}

namespace {
bool bare(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; }
}  // namespace

std::vector<std::string> split_key(std::string_view key) {
  std::vector<std::string> parts;
  size_t i = 0;
  auto name = [&] {  // a bare or quoted name
    size_t begin = i;
    if (i < key.size() && (key[i] == '"' || key[i] == '\'')) {
      size_t end = key.find(key[i], i + 1);
      if (end == std::string_view::npos) return false;
      i = end + 1;
      parts.emplace_back(key.substr(begin + 1, end - begin - 1));
      return true;
    }
    while (i < key.size() && bare(key[i])) ++i;
    parts.emplace_back(key.substr(begin, i - begin));
    return i > begin;
  };
  if (!name()) return {};
  while (i < key.size()) {
    if (key[i] == '.') {
      ++i;
      if (!name()) return {};
    } else if (key[i] == '[') {
      size_t end = key.find(']', i);
      if (end == std::string_view::npos) return {};
      parts.emplace_back(key.substr(i + 1, end - i - 1));
      i = end + 1;
    } else {
      return {};
    }
  }
  return parts;
}

}  // namespace config
