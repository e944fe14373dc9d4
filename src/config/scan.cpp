// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "config/toml.hpp"

namespace config {
namespace {

// TOML++ builds dotted keys and headers of any depth, destroys tables recursively and searches some
// lists linearly. No real deck comes near these limits.
constexpr size_t max_depth = 16;
constexpr int max_dots = 16;
constexpr size_t max_values = 100'000;
constexpr size_t max_bytes = size_t{4} << 20;

class Scanner {
 public:
  explicit Scanner(const std::string& text) : text_(text) {}

  Scan run() {
    if (text_.size() > max_bytes) {
      too_much(fmt::format("more than {} MiB of text", max_bytes >> 20));
      return std::move(scan_);
    }
    if (text_.starts_with("\xef\xbb\xbf")) i_ = 3;  // a byte order mark
    begin_statement();
    while (i_ < text_.size() && scan_.problem.text.empty()) step();
    end_statement();
    return std::move(scan_);
  }

 private:
  void step() {
    char c = text_[i_];
    if (c != '\n' && c != ' ' && c != '\t' && c != '\r' && c != '#' && empty_) {
      empty_ = false;
      scan_.statements.back().header = c == '[';
      if (c == '[') check_header();
    }
    switch (c) {
      case '#':
        i_ = std::min(text_.find('\n', i_), text_.size());
        return;
      case '"':
      case '\'':
        skip_string(c);
        return;
      case '\n':
        ++i_;
        dots_ = 0;
        if (scan_.statements.back().header) open_brackets_.clear();  // a header never spans lines
        if (open_brackets_.empty()) end_statement();
        ++line_;
        if (open_brackets_.empty()) begin_statement();
        return;
      case '[':
      case '{':
        open_brackets_ += c;
        if (open_brackets_.size() > max_depth)
          too_much(fmt::format("values nested more than {} deep", max_depth));
        dots_ = 0;
        break;
      case ']':
      case '}':
        if (!open_brackets_.empty()) {
          char expected = open_brackets_.back() == '[' ? ']' : '}';
          if (c != expected) fault(fmt::format("found {} where {} should close", c, expected));
          open_brackets_.pop_back();
        }
        dots_ = 0;
        break;
      case ',':
        count_value();
        dots_ = 0;
        break;
      case '=':
        dots_ = 0;
        break;
      case '.':
        if (++dots_ > max_dots) too_much(fmt::format("a key with more than {} dots", max_dots));
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x80)
          fault("a character that is not ASCII outside quotes; text needs straight \" or ' quotes");
        break;
    }
    ++i_;
  }

  void skip_string(char quote) {
    bool escapes = quote == '"';
    bool triple = text_.compare(i_, 3, std::string(3, quote)) == 0;
    i_ += triple ? 3 : 1;
    for (; i_ < text_.size(); ++i_) {
      if (text_[i_] == '\n') {
        if (!triple) return;  // not closed: the parser reports it
        ++line_;
      } else if (text_[i_] == '\\' && escapes) {
        if (++i_ < text_.size() && text_[i_] == '\n') --i_;
      } else if (text_[i_] == quote &&
                 (!triple || text_.compare(i_, 3, std::string(3, quote)) == 0)) {
        i_ += triple ? 3 : 1;
        // Up to two quotes before the closing three belong to the text.
        while (triple && i_ < text_.size() && text_[i_] == quote) ++i_;
        return;
      }
    }
  }

  void check_header() {
    size_t name = i_ + (text_.compare(i_, 2, "[[") == 0 ? 2 : 1);
    name = std::min(text_.find_first_not_of(" \t", name), text_.size());
    char c = name < text_.size() ? text_[name] : '\n';
    bool starts_name = std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' ||
                       c == '"' || c == '\'';
    if (!starts_name) fault("a table header has no name; write [name]");
  }

  void fault(std::string what) {
    SyntaxProblem& problem = scan_.statements.back().fault;
    if (problem.text.empty()) problem = {line_, std::move(what)};
  }

  void begin_statement() {
    scan_.statements.push_back({line_, i_, i_, false, {}});
    empty_ = true;
  }
  void end_statement() {
    if (empty_) {
      scan_.statements.pop_back();
      return;
    }
    scan_.statements.back().end = i_;
    count_value();
  }
  void count_value() {
    if (++values_ > max_values) too_much(fmt::format("more than {} values", max_values));
  }
  void too_much(std::string what) { scan_.problem = {line_, what + ", the limit for a deck"}; }

  const std::string& text_;
  Scan scan_;
  size_t i_ = 0, values_ = 0;
  int line_ = 1, dots_ = 0;
  std::string open_brackets_;
  bool empty_ = true;  // only blanks and comments since the last statement
};

}  // namespace

Scan scan_toml(const std::string& text) { return Scanner(text).run(); }

}  // namespace config
