// SPDX-License-Identifier: Apache-2.0
// TOML text to nodes. toml.cpp is the only file of the program that includes TOML++. Private to
// this folder.
#pragma once

#include <string>
#include <vector>

#include "config/node.hpp"

namespace config {

struct SyntaxProblem {
  int line = 1;
  std::string text;
};

struct ParsedToml {
  Node root;
  std::vector<SyntaxProblem> problems;
  // A faulty table header, whose keys cannot be told from those of the table above it, or too many
  // errors: the tree is no base for further messages.
  bool unusable = false;
};

// After a syntax error the faulty statement is left out and the rest is read, so that one run shows
// several errors. Limits keep hostile input from exhausting stack, memory or time.
ParsedToml parse_toml(std::string text);

// ---- scan.cpp

// A top-level statement (key = value, or a header) with its bytes and first line.
struct Statement {
  int line = 1;
  size_t begin = 0, end = 0;
  bool header = false;
  // Invalid TOML that must not reach TOML++ 3.3, which has undefined behaviour for it; text empty:
  // none.
  SyntaxProblem fault;
};

struct Scan {
  std::vector<Statement> statements;
  SyntaxProblem problem;  // text empty: within the limits
};

// Splits text into statements without parsing it. Exact for valid TOML; for other text exact up to
// the first error.
Scan scan_toml(const std::string& text);

}  // namespace config
