// SPDX-License-Identifier: Apache-2.0
// The syntax of preprocessing strings: `op1 | op2(1, "a", key=[2, 3]) | ...`, with arguments as in
// a Python call with literals.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace data {

// A literal is None | True, False | 1 | 1.5 | "text" | [list] or (tuple).
struct Literal;
using LiteralList = std::vector<Literal>;
struct Literal : std::variant<std::monostate, bool, int64_t, double, std::string, LiteralList> {
  using variant::variant;
};
std::string text_of(const Literal& value);  // in the syntax of a call

struct Argument {
  std::string name;  // "" = by position
  Literal value;
  size_t at = 0;  // offset in the string
};

struct Call {
  std::string name;
  size_t at = 0;
  std::vector<Argument> arguments;
};

// Throws Error(Exit::config) with the place of the problem. Empty sections ("a || b", "a |") are
// errors.
std::vector<Call> parse_calls(std::string_view text);

// Returns "character 17 (near 'resze(64)')". Every message about a preprocessing string names a
// place in it like this.
std::string place(std::string_view text, size_t at);

}  // namespace data
