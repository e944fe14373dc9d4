// SPDX-License-Identifier: Apache-2.0
#include "base/pattern.hpp"

#include <fmt/format.h>

#include <regex>

namespace base {

std::string pattern_problem(const std::string& text) {
  constexpr size_t kLongest = 1000;
  if (text.size() > kLongest)
    return fmt::format("the regular expression has {} characters; at most {} are allowed",
                       text.size(), kLongest);
  try {
    std::regex pattern(text);
  } catch (const std::regex_error& e) {
    return fmt::format("not a regular expression: {}", e.what());
  }
  return "";
}

struct Pattern::Compiled {
  std::regex regex;
};

Pattern::Pattern(const std::string& text)
    : compiled_(std::make_shared<const Compiled>(Compiled{std::regex(text)})) {}

bool Pattern::matches(const std::string& text) const {
  return std::regex_match(text, compiled_->regex);
}

}  // namespace base
