// SPDX-License-Identifier: Apache-2.0
// Converts TOML text to nodes. toml.cpp is the only file of the program that includes TOML++.
// Private to this folder.
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
  // True after a broken table header (its keys would join the previous table) and after too many
  // errors. Later problems are then not reported.
  bool unusable = false;
};

// Leaves out a statement with a syntax error and reads the rest, so that one run shows several
// errors. Limits keep hostile input from exhausting stack, memory or time.
ParsedToml parse_toml(std::string text);

// ---- scan.cpp

// A top-level statement (key = value, or a header) with its bytes and first line.
struct Statement {
  int line = 1;
  size_t begin = 0, end = 0;
  bool header = false;
  // Set for invalid TOML for which TOML++ 3.3 has undefined behaviour; empty text if there is none.
  SyntaxProblem fault;
};

struct Scan {
  std::vector<Statement> statements;
  SyntaxProblem problem;  // text is empty within the limits
};

// Splits text into statements without parsing it. The result is exact for valid TOML, and exact up
// to the first error for other text.
Scan scan_toml(const std::string& text);

}  // namespace config
