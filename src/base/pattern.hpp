// SPDX-License-Identifier: Apache-2.0
// Regular expressions from decks. pattern.cpp alone includes <regex>, whose templates take a
// compiler four seconds in each file that uses them.
#pragma once

#include <memory>
#include <string>

namespace base {

// Returns the reason why the text cannot be used as a regular expression, or "". std::regex
// recurses once per character, so long ones are refused unparsed.
std::string pattern_problem(const std::string& text);

// A regular expression that must match a whole text. Copies share what was compiled.
class Pattern {
 public:
  // Throws std::regex_error if the text is not a regular expression. Does not check its length.
  explicit Pattern(const std::string& text);
  bool matches(const std::string& text) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace base
