// SPDX-License-Identifier: Apache-2.0
#include "data/sources/brace.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/error.hpp"
#include "base/text.hpp"

namespace data {
namespace {

using base::Exit;
constexpr size_t kMostNames = 1'000'000;  // more names are a typing error
constexpr size_t kMostBytes = size_t{256} << 20;

// A piece of a pattern: a list of texts (fixed text is a list of one) or a range of numbers.
struct Piece {
  std::vector<std::string> texts;
  int64_t first = 0, last = 0;  // used if there are no texts
  size_t width = 0;             // minimum digits of a number

  size_t count() const { return texts.empty() ? size_t(last - first + 1) : texts.size(); }
  std::string at(size_t i) const {
    return texts.empty() ? fmt::format("{:0{}}", first + int64_t(i), width) : texts[i];
  }
  size_t longest() const {
    size_t out = texts.empty() ? at(count() - 1).size() : 0;
    for (const std::string& t : texts) out = std::max(out, t.size());
    return out;
  }
};

bool digits(std::string_view s) {
  return !s.empty() && s.size() <= 12 &&
         std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int64_t number(std::string_view s) {
  int64_t n = 0;
  std::from_chars(s.data(), s.data() + s.size(), n);
  return n;
}

Piece alternatives(std::string_view body, std::string_view pattern) {
  size_t dots = body.find("..");
  if (dots == std::string_view::npos) {
    Piece list{.texts = base::split(body, ',')};
    if (list.texts.size() < 2)
      base::fail(Exit::config,
                 "'{}': braces hold a range {{000..003}} or a list {{a,b}}, not '{{{}}}'", pattern,
                 body);
    return list;
  }
  std::string_view first = body.substr(0, dots), last = body.substr(dots + 2);
  if (!digits(first) || !digits(last))
    base::fail(Exit::config, "'{}': '{{{}}}' is not a range of numbers such as {{000..003}}",
               pattern, body);
  auto begins_with_zero = [](std::string_view s) { return s.size() > 1 && s[0] == '0'; };
  const bool padded = begins_with_zero(first) || begins_with_zero(last);
  Piece range{.texts = {},
              .first = number(first),
              .last = number(last),
              .width = padded ? std::max(first.size(), last.size()) : 1};
  if (range.first > range.last)
    base::fail(Exit::config, "'{}': the range '{{{}}}' runs backwards", pattern, body);
  return range;
}

std::vector<Piece> pieces_of(std::string_view pattern) {
  std::vector<Piece> pieces;
  size_t names = 1, longest = 0;
  auto add = [&](Piece piece) {
    if (piece.count() > kMostNames / names)
      base::fail(Exit::config, "'{}' stands for more than {} names", pattern, kMostNames);
    names *= piece.count();
    longest += piece.longest();
    if (longest > kMostBytes / names)
      base::fail(Exit::config, "'{:.200}...' stands for more than {} MiB of names", pattern,
                 kMostBytes >> 20);
    pieces.push_back(std::move(piece));
  };
  for (size_t at = 0; at < pattern.size();) {
    size_t open = std::min(pattern.find_first_of("{}", at), pattern.size());
    add({.texts = {std::string(pattern.substr(at, open - at))}});
    if (open == pattern.size()) break;
    size_t close = pattern.find_first_of("{}", open + 1);
    if (pattern[open] == '}' || close == std::string_view::npos || pattern[close] == '{')
      base::fail(Exit::config, "'{}': braces do not match (they cannot be nested)", pattern);
    add(alternatives(pattern.substr(open + 1, close - open - 1), pattern));
    at = close + 1;
  }
  return pieces;
}

}  // namespace

void check_braces(std::string_view pattern) { pieces_of(pattern); }

std::vector<std::string> expand_braces(std::string_view pattern) {
  std::vector<std::string> out{""};
  for (const Piece& piece : pieces_of(pattern)) {
    std::vector<std::string> next;
    next.reserve(out.size() * piece.count());
    for (const std::string& s : out)
      for (size_t i = 0; i < piece.count(); ++i) next.push_back(s + piece.at(i));
    out = std::move(next);
  }
  return out;
}

}  // namespace data
