// SPDX-License-Identifier: Apache-2.0
#include "data/ops/call_parser.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.hpp"
#include "base/text.hpp"

namespace data {
namespace {

constexpr int kDeepest = 8;  // maximum depth of lists in lists

bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::vector<Call> pipeline() {
    std::vector<Call> calls;
    skip_space();
    if (at_ == text_.size()) return calls;
    while (true) {
      skip_space();
      if (at_ == text_.size() || peek() == '|')
        fail(at_, "expected an op before or after '|'; write it or remove the '|'");
      calls.push_back(call());
      skip_space();
      if (at_ == text_.size()) return calls;
      if (!take('|')) fail(at_, "expected '|' before the next op");
    }
  }

 private:
  [[noreturn]] void fail(size_t at, std::string_view what) const {
    base::fail(base::Exit::config, "{}: {}", place(text_, at), what);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  std::string name() {
    size_t begin = at_;
    while (letter(peek()) || (at_ > begin && digit(peek()))) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Call call() {
    Call out{.name = "", .at = at_, .arguments = {}};
    out.name = name();
    if (out.name.empty()) fail(at_, "expected the name of an op");
    skip_space();
    if (!take('(')) return out;
    for (bool named = false; true;) {
      skip_space();
      if (take(')')) return out;
      out.arguments.push_back(argument());
      if (named && out.arguments.back().name.empty())
        fail(out.arguments.back().at,
             "an argument without a name follows one with a name; name it, too");
      named = !out.arguments.back().name.empty();
      skip_space();
      if (peek() != ')' && !take(','))
        fail(at_, at_ == text_.size() ? "'(' is never closed" : "expected ',' or ')'");
    }
  }

  Argument argument() {
    Argument out{.name = "", .value = {}, .at = at_};
    size_t begin = at_;
    if (std::string word = name(); !word.empty()) {
      skip_space();
      if (take('=')) {
        out.name = word;
        skip_space();
      } else {
        at_ = begin;
      }
    }
    out.value = literal(0);
    return out;
  }

  Literal literal(int depth) {
    if (depth > kDeepest) fail(at_, "lists are nested too deeply");
    char c = peek();
    if (c == '"' || c == '\'') return text();
    if (c == '[' || c == '(') return list(depth);
    if (digit(c) || c == '-' || c == '+' || c == '.') return number();
    size_t begin = at_;
    std::string word = name();
    if (word == "True" || word == "true") return Literal(true);
    if (word == "False" || word == "false") return Literal(false);
    if (word == "None") return Literal(std::monostate{});
    if (word.empty())
      fail(begin, at_ == text_.size() ? "the string ends inside an argument" : "expected a value");
    fail(begin, fmt::format("'{}' is not a value; texts need quotes: \"{}\"", word, word));
  }

  Literal text() {
    size_t begin = at_;
    char quote = text_[at_++];
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\\') {
        char escaped = peek();
        if (escaped != '\\' && escaped != '"' && escaped != '\'' && escaped != 'n' &&
            escaped != 't')
          fail(at_ - 1, "known escapes are \\\\ \\\" \\' \\n \\t");
        ++at_;
        c = escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
      }
      out += c;
    }
    if (!take(quote)) fail(begin, "the text is never closed");
    return Literal(std::move(out));
  }

  Literal list(int depth) {
    size_t begin = at_;
    char close = text_[at_++] == '[' ? ']' : ')';
    LiteralList items;
    while (true) {
      skip_space();
      if (take(close)) return Literal(std::move(items));
      items.push_back(literal(depth + 1));
      skip_space();
      if (peek() != close && !take(','))
        at_ == text_.size() ? fail(begin, "the list is never closed")
                            : fail(at_, fmt::format("expected ',' or '{}'", close));
    }
  }

  Literal number() {
    size_t begin = at_;
    if (peek() == '+') ++at_;
    size_t end = at_;
    while (end < text_.size() && (digit(text_[end]) || letter(text_[end]) || text_[end] == '.' ||
                                  ((text_[end] == '-' || text_[end] == '+') &&
                                   (end == at_ || text_[end - 1] == 'e' || text_[end - 1] == 'E'))))
      ++end;
    constexpr size_t kLongest = 100;
    if (end - at_ > kLongest) fail(begin, "not a number");
    std::string digits(text_.substr(at_, end - at_));
    // Removes the underscore of 32_000, as TOML and Python do.
    for (size_t i = 1; i + 1 < digits.size(); ++i)
      if (digits[i] == '_' && digit(digits[i - 1]) && digit(digits[i + 1])) digits.erase(i, 1);
    const char *first = digits.data(), *last = first + digits.size();
    at_ = end;
    int64_t whole = 0;
    if (auto [stop, problem] = std::from_chars(first, last, whole);
        problem == std::errc() && stop == last)
      return Literal(whole);
    double real = 0;
    auto [stop, problem] = std::from_chars(first, last, real);
    if (problem != std::errc() || stop != last || !std::isfinite(real)) fail(begin, "not a number");
    return Literal(real);
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::vector<Call> parse_calls(std::string_view text) { return Parser(text).pipeline(); }

std::string place(std::string_view text, size_t at) {
  at = std::min(at, text.size());
  if (at == text.size()) return fmt::format("character {} (the end)", at + 1);
  std::string_view near =
      text.substr(at, std::min(text.find_first_of("|\r\n", at + 1), text.size()) - at);
  return fmt::format("character {} (near '{}')", at + 1, base::trim(near.substr(0, 24)));
}

std::string text_of(const Literal& value) {
  struct Writer {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool b) const { return b ? "True" : "False"; }
    std::string operator()(int64_t n) const { return std::to_string(n); }
    std::string operator()(double x) const { return fmt::format("{}", x); }
    std::string operator()(const std::string& s) const { return fmt::format("\"{}\"", s); }
    std::string operator()(const LiteralList& items) const {
      std::vector<std::string> parts;
      for (const Literal& item : items) parts.push_back(text_of(item));
      return fmt::format("[{}]", base::join(parts, ", "));
    }
  };
  return std::visit(Writer{}, static_cast<const Literal::variant&>(value));
}

}  // namespace data
