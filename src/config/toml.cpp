// SPDX-License-Identifier: Apache-2.0
#include "config/toml.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "config/write.hpp"

namespace config {
namespace {

Node to_node(const toml::node& in) {
  Node out;
  out.at.line = std::max(1, int(in.source().begin.line));
  switch (in.type()) {
    case toml::node_type::table:
      for (auto&& [name, value] : *in.as_table())
        out.entries.emplace(std::string(name.str()), to_node(value));
      break;
    case toml::node_type::array:
      out.kind = Node::Kind::array;
      for (const toml::node& item : *in.as_array()) out.items.push_back(to_node(item));
      break;
    case toml::node_type::string:
      out.kind = Node::Kind::string;
      out.string = in.as_string()->get();
      break;
    case toml::node_type::integer:
      out.kind = Node::Kind::integer;
      out.integer = in.as_integer()->get();
      break;
    case toml::node_type::floating_point:
      out.kind = Node::Kind::real;
      out.real = in.as_floating_point()->get();
      break;
    case toml::node_type::boolean:
      out.kind = Node::Kind::boolean;
      out.boolean = in.as_boolean()->get();
      break;
    default:
      out.kind = Node::Kind::date;
      break;
  }
  return out;
}

// Adds a hint how to correct the deck to the parser's description of an error.
std::string explain(std::string_view description) {
  struct Hint {
    std::string_view part, way_out;
  };
  static constexpr Hint hints[] = {
      {"redefine existing", "each key and each table may be given only once"},
      {"into existing inline table", "a { } table is closed; add the key inside its braces"},
      {"not representable", "the largest is 9223372036854775807"},
      {"could not be interpreted", "the number is too large, or not a number"},
      {"could not determine value type", "text needs quotes; booleans are true and false"},
      {"expected 'true'", "booleans are true and false, text needs quotes"},
      {"expected 'false'", "booleans are true and false, text needs quotes"},
      {"expected digit", "text needs quotes"},
      {"expected '='", "a line is key = value or [table]"},
      {"escape sequence", "use 'single quotes' for text with backslashes"},
      {"control characters", "is a closing quote missing?"},
      {"expected comma or closing ']'", "is a ] or a comma missing?"},
  };
  constexpr std::string_view prefix = "Error while parsing ";
  std::string text = printable(
      description.starts_with(prefix) ? description.substr(prefix.size()) : description, 300);
  for (const Hint& hint : hints)
    if (description.find(hint.part) != description.npos)
      return text + "; " + std::string(hint.way_out);
  return text;
}

constexpr size_t max_syntax_problems = 10;

// Parses the text. Returns false and sets `problem` if the text has an error.
bool try_parse(const std::string& text, Node& root, SyntaxProblem& problem) {
  try {
    root = to_node(toml::parse(text));
    return true;
  } catch (const toml::parse_error& error) {
    problem = {std::max(1, int(error.source().begin.line)), explain(error.description())};
    return false;
  }
}

}  // namespace

ParsedToml parse_toml(std::string text) {
  ParsedToml out;
  while (out.problems.size() < max_syntax_problems) {
    Scan scan = scan_toml(text);
    SyntaxProblem problem = scan.problem;
    if (!problem.text.empty()) {
      out.problems.push_back(problem);
      break;
    }
    auto statement = scan.statements.begin();
    while (statement != scan.statements.end() && statement->fault.text.empty()) ++statement;
    if (statement != scan.statements.end()) {
      problem = statement->fault;
    } else {
      if (try_parse(text, out.root, problem)) return out;
      // Finds the last statement that begins at or before the line.
      statement = std::upper_bound(scan.statements.begin(), scan.statements.end(), problem.line,
                                   [](int line, const Statement& s) { return line < s.line; });
      if (statement == scan.statements.begin()) {
        out.problems.push_back(problem);
        break;
      }
      --statement;
      if (statement->line < problem.line)
        problem.text += fmt::format("; the statement begins in line {}", statement->line);
    }
    out.problems.push_back(problem);
    out.unusable = out.unusable || statement->header;
    for (size_t i = statement->begin; i < statement->end; ++i)
      if (text[i] != '\n') text[i] = ' ';
  }
  out.unusable = true;
  return out;
}

}  // namespace config
