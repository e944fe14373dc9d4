// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/npy_header.hpp"

#include <algorithm>
#include <charconv>

#include "base/error.hpp"
#include "base/text.hpp"

namespace checkpoint {
namespace {

constexpr size_t kMaxAxes = 32;  // NumPy's own limit

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  NpyHeader header() {
    NpyHeader h;
    bool descr = false, order = false, shape = false;
    auto once = [this](bool& seen) {
      if (seen) fail("a key appears twice");
      seen = true;
    };
    expect('{');
    while (!skip('}')) {
      std::string key = text();
      expect(':');
      if (key == "descr") {
        once(descr);
        h.descr = type();
      } else if (key == "fortran_order") {
        once(order);
        h.fortran = boolean();
      } else if (key == "shape") {
        once(shape);
        h.shape = numbers();
      } else
        fail("an unknown key");
      if (!skip(',') && peek() != '}') fail("a ',' or '}' is missing");
    }
    if (peek() != '\0') fail("something follows the dictionary");
    if (!descr || !order || !shape) fail("descr, fortran_order or shape is missing");
    return h;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    base::fail(base::Exit::checkpoint, "its header is damaged: {} at character {} of {}", what, at_,
               base::quoted(text_));
  }
  char peek() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool skip(char c) {
    if (peek() != c || c == '\0') return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!skip(c)) fail("unexpected text");
  }
  std::string text() {
    char quote = peek();
    if (quote != '\'' && quote != '"') fail("a text in quotes is missing");
    size_t end = text_.find(quote, at_ + 1);
    if (end == text_.npos) fail("a quote is missing");
    std::string out(text_.substr(at_ + 1, end - at_ - 1));
    if (out.find('\\') != out.npos) fail("a backslash");
    at_ = end + 1;
    return out;
  }
  // A structured type is a list of tuples. Its text is returned as it is.
  std::string type() {
    if (peek() != '[') return text();
    size_t begin = at_;
    int depth = 0;
    do {
      char c = peek();
      if (c == '\0') fail("a bracket is missing");
      depth += (c == '[' || c == '(') - (c == ']' || c == ')');
      ++at_;
    } while (depth > 0);
    return std::string(text_.substr(begin, at_ - begin));
  }
  bool boolean() {
    peek();
    for (const char* word : {"True", "False"})
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::string_view(word).size();
        return word[0] == 'T';
      }
    fail("True or False is missing");
  }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> out;
    expect('(');
    while (!skip(')')) {
      peek();
      int64_t value = 0;
      auto [end, problem] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      if (problem != std::errc() || value < 0) fail("a size is missing or impossible");
      at_ = size_t(end - text_.data());
      // NumPy under Python 2 wrote numbers of type long, such as 64L.
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;
      out.push_back(value);
      if (out.size() > kMaxAxes) fail("too many axes");
      if (!skip(',') && peek() != ')') fail("a ',' or ')' is missing");
    }
    return out;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text) { return Parser(text).header(); }

bool is_big_endian(std::string_view descr) { return descr.starts_with('>'); }

void reverse_bytes(char* values, int64_t bytes, int64_t size) {
  for (int64_t at = 0; at < bytes; at += size) std::reverse(values + at, values + at + size);
}

std::optional<device::DType> weight_type(std::string_view descr) {
  using device::DType;
  std::string little(descr);
  if (is_big_endian(descr) && descr != ">V2") little[0] = '<';
  // Other writers leave the order to the machine, or name the type; NumPy reads both.
  if (descr.starts_with('=') || (descr.starts_with('|') && descr != "|V2")) little[0] = '<';
  if (descr == "f2" || descr == "f4" || descr == "f8" || descr == "i8") little.insert(0, "<");
  if (descr == "float16" || descr == "float32" || descr == "float64")
    little = fmt::format("<f{}", descr == "float16" ? 2 : descr == "float32" ? 4 : 8);
  if (descr == "int64") little = "<i8";
  descr = little;
  if (descr == "<f4") return DType::f32;
  if (descr == "<f8") return DType::f64;
  if (descr == "<i8") return DType::i64;
  if (descr == "<f2") return DType::f16;
  if (descr == "|V2" || descr == "<V2" || descr == "bfloat16") return DType::bf16;
  return {};
}

}  // namespace checkpoint
