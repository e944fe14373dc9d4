// SPDX-License-Identifier: Apache-2.0
// The deck as a tree: the nodes that TOML++ parsed (toml.cpp), changed by the overrides
// (overrides.cpp). Private to this folder.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace config {

// The place where a value was written. Origin 0 is the deck, n > 0 the n-th --set, -n the n-th
// --unset.
struct Location {
  int origin = 0;
  int line = 1;
};

struct Node {
  enum class Kind { boolean, integer, real, string, date, array, table };

  Kind kind = Kind::table;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;
  std::string string;
  std::vector<Node> items;
  std::map<std::string, Node, std::less<>> entries;
  Location at;
  std::optional<std::string> replaced;  // the string of the deck that an override replaced
  // True if a row or table read the node or a problem was reported for it. Unknown nodes are
  // reported at the end.
  bool known = false;

  bool is_table() const { return kind == Kind::table; }
  Node* find(std::string_view name) {
    auto it = entries.find(name);
    return it == entries.end() ? nullptr : &it->second;
  }
  const Node* find(std::string_view name) const { return const_cast<Node*>(this)->find(name); }
};

// Describes a node for a message: the string "8", the number 8.0, a table.
std::string found(const Node& node);

// Splits a key path into its parts: a.b."c.d", rule.0.match, rule[0].match. Empty if the text is
// not a key path.
std::vector<std::string> split_key(std::string_view key);

}  // namespace config
