// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/path.hpp"
#include "base/text.hpp"
#include "config/schema.hpp"
#include "config/unknown.hpp"
#include "config/write.hpp"

namespace config {
namespace {

using Kind = Node::Kind;

const char* expected(Type type) {
  switch (type) {
    case Type::boolean:
      return "true or false";
    case Type::int32:
    case Type::int64:
      return "an integer";
    case Type::real:
      return "a number";
    case Type::string:
      return "a string";
    case Type::strings:
      return "a list of strings";
    case Type::integers:
      return "a list of integers";
    case Type::reals:
      return "a list of numbers";
    case Type::string_map:
      return "a table of strings";
    case Type::real_map:
      return "a table of numbers";
    case Type::duration:
      return "a length of time in training";
  }
  return "";
}

Type element_type(Type type) {
  if (type == Type::strings || type == Type::string_map) return Type::string;
  return type == Type::integers ? Type::int64 : Type::real;
}

std::string map_suffix(const std::string& name) {
  return fmt::format(".{}", printable(toml_key(name)));
}

bool whole(double value) { return std::trunc(value) == value && std::abs(value) < 0x1p63; }
bool is_integer_text(const std::string& text) {
  size_t digits = text.find_first_not_of("0123456789", text.starts_with('-') ? 1 : 0);
  return digits == text.npos && !text.empty() && text != "-" && text.size() < 19;
}
bool is_number_text(const std::string& text) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0 && std::isfinite(value) &&
         text.find_first_not_of("0123456789+-.eE") == text.npos;
}

// Returns how to write the value that was probably meant; empty if there is no good guess.
std::string way_out(const Node& node, Type type) {
  switch (type) {
    case Type::boolean:
      if (node.kind == Kind::string && (node.string == "true" || node.string == "false"))
        return fmt::format("write {} without quotes", node.string);
      return "";
    case Type::int32:
    case Type::int64:
      if (node.kind == Kind::real && whole(node.real))
        return fmt::format("write {}", int64_t(node.real));
      if (node.kind == Kind::string && is_integer_text(node.string))
        return fmt::format("write {} without quotes", std::stoll(node.string));
      return "";
    case Type::real:
      if (node.kind == Kind::string && is_number_text(node.string))
        return fmt::format("write {} without quotes",
                           toml_number(std::strtod(node.string.c_str(), nullptr)));
      return "";
    case Type::string:
      if (node.kind == Kind::integer) return fmt::format("write \"{}\"", node.integer);
      if (node.kind == Kind::real) return fmt::format("write \"{}\"", toml_number(node.real));
      if (node.kind == Kind::boolean) return fmt::format("write \"{}\"", node.boolean);
      if (node.kind == Kind::date) return "put it in quotes";
      return "";
    case Type::strings:
      return node.kind == Kind::string ? fmt::format("write [{}]", quoted(node.string)) : "";
    case Type::integers:
      return node.kind == Kind::integer ? fmt::format("write [{}]", node.integer) : "";
    case Type::reals:
      if (node.kind == Kind::integer) return fmt::format("write [{}]", node.integer);
      return node.kind == Kind::real ? fmt::format("write [{}]", toml_number(node.real)) : "";
    case Type::string_map:
      return "write { name = \"text\" }";
    case Type::real_map:
      return "write { name = 1.0 }";
    case Type::duration:
      return "";
  }
  return "";
}

// Returns the words that the value may be instead of numbers: ` or "input"`.
std::string or_words(const Row& row) {
  std::string out;
  for (const std::string& word : row.choices) out += " or " + quoted(word);
  return out;
}

ValueProblem mismatch(const Node& node, Type type, std::string suffix = {}) {
  std::string hint = way_out(node, type);
  return {std::move(suffix), fmt::format("expected {}, found {}{}{}", expected(type), found(node),
                                         hint.empty() ? "" : "; ", hint)};
}

// Reads one scalar. Returns false and leaves `out` alone if the node has another type.
bool read(const Node& node, bool& out) {
  if (node.kind != Kind::boolean) return false;
  out = node.boolean;
  return true;
}
bool read(const Node& node, int64_t& out) {
  if (node.kind != Kind::integer) return false;
  out = node.integer;
  return true;
}
bool read(const Node& node, double& out) {
  if (node.kind != Kind::real && node.kind != Kind::integer) return false;
  out = node.kind == Kind::real ? node.real : double(node.integer);
  return true;
}
bool read(const Node& node, std::string& out) {
  if (node.kind != Kind::string) return false;
  out = node.string;
  return true;
}

template <class T>
std::vector<ValueProblem> read_scalar(const Node& node, Type type, Value& out) {
  T value{};
  if (!read(node, value)) return {mismatch(node, type)};
  out = std::move(value);
  return {};
}

template <class T>
std::vector<ValueProblem> read_list(const Node& node, Type type, Value& out) {
  if (node.kind != Kind::array) return {mismatch(node, type)};
  std::vector<ValueProblem> problems;
  std::vector<T> values(node.items.size());
  for (size_t i = 0; i < values.size(); ++i)
    if (!read(node.items[i], values[i]))
      problems.push_back(mismatch(node.items[i], element_type(type), fmt::format("[{}]", i)));
  out = std::move(values);
  return problems;
}

template <class T>
std::vector<ValueProblem> read_map(const Node& node, Type type, Value& out) {
  if (!node.is_table()) return {mismatch(node, type)};
  std::vector<ValueProblem> problems;
  std::map<std::string, T> values;
  for (const auto& [name, item] : node.entries)
    if (!read(item, values[name]))
      problems.push_back(mismatch(item, element_type(type), map_suffix(name)));
  out = std::move(values);
  return problems;
}

std::vector<ValueProblem> read_integers(const Node& node, const Row& row, Value& out) {
  if (row.choices.empty() || node.kind == Kind::array)
    return read_list<int64_t>(node, row.type, out);
  if (node.kind == Kind::string && node.string == row.choices.front()) {
    out = std::vector<int64_t>{kEach};
    return {};
  }
  return {
      {"", fmt::format("expected {}{}, found {}", expected(row.type), or_words(row), found(node))}};
}

std::string check_number(const Row& row, double value, const std::string& text) {
  if (!std::isfinite(value)) return fmt::format("{} is not a finite number", text);
  if ((row.least && value < *row.least) || (row.most && value > *row.most) ||
      (row.above && value <= *row.above))
    return fmt::format("{} is out of range: must be {}{}{}", text, range_text(row),
                       row.unit.empty() ? "" : " ", row.unit);
  return {};
}

std::string check_integer(const Row& row, int64_t value) {
  using Limits = std::numeric_limits<int>;
  if (row.type == Type::int32 && (value < Limits::min() || value > Limits::max()))
    return fmt::format("{} does not fit: must be {}..{}", value, Limits::min(), Limits::max());
  return check_number(row, double(value), fmt::format("{}", value));
}

// The unit of texts that are paths of this machine.
constexpr std::string_view kPath = "path";

std::string check_string(const Row& row, const std::string& value) {
  if (row.unit == kPath) return base::path_problem(value);
  if (row.choices.empty()) return {};
  for (const std::string& choice : row.choices)
    if (value == choice) return {};
  std::string near = nearest(value, row.choices);
  std::vector<std::string> accepted;
  for (const std::string& choice : row.choices) accepted.push_back(quoted(choice));
  return fmt::format("{} is not accepted{} Accepted: {}", quoted(value),
                     near.empty() ? "." : fmt::format("; did you mean {}?", quoted(near)),
                     base::join(accepted, ", "));
}

std::string check_duration(const Row& row, const Duration& value) {
  if (!value.set() || is_input(value)) return {};
  std::string text = plain_number(value.value);
  if (!std::isfinite(value.value)) return text + " is not a finite number";
  if (value.value < 0) return text + " is out of range: must be >= 0";
  if (value.value > 0x1p53) return text + " is too large";
  if (value.unit == Duration::Unit::fraction && value.value > 1)
    return fmt::format(
        "{} is out of range: must be 0..1, a fraction of the run (10 percent is 0.1)", text);
  return check_number(row, value.value, text);
}

// The spelling of the key has set the unit.
std::vector<ValueProblem> convert_duration(const Node& node, const Row& row, Duration& out) {
  using Unit = Duration::Unit;
  const bool whole = out.unit == Unit::steps || out.unit == Unit::examples;
  const bool word = node.kind == Kind::string && !row.choices.empty();
  if (word && node.string == kInput && out.unit == Unit::steps) {
    out.value = kUntilInputEnds;
    return {};
  }
  if (whole && node.kind == Kind::integer) {
    out.value = double(node.integer);
    return {};
  }
  if (!whole && read(node, out.value)) return {};
  ValueProblem problem = mismatch(node, whole ? Type::int64 : Type::real);
  if (word && out.unit == Unit::steps)
    problem.text =
        fmt::format("expected {}{}, found {}", expected(Type::int64), or_words(row), found(node));
  else if (word && node.string == kInput)
    problem.text += fmt::format("; write {}_steps = {}", row.name, quoted(kInput));
  return {problem};
}

}  // namespace

std::string type_name(const Row& row) { return expected(row.type); }

std::string short_type_name(const Row& row) {
  switch (row.type) {
    case Type::boolean:
      return "boolean";
    case Type::int32:
    case Type::int64:
      return "integer";
    case Type::real:
      return "number";
    case Type::string:
      return "string";
    case Type::strings:
      return "strings";
    case Type::integers:
      return "integers";
    case Type::reals:
      return "numbers";
    case Type::string_map:
      return "string table";
    case Type::real_map:
      return "number table";
    case Type::duration:
      return "duration";
  }
  return "";
}

std::string range_text(const Row& row) {
  if (!row.choices.empty() && (row.type == Type::duration || row.type == Type::integers)) {
    Row numbers;
    numbers.least = row.least;
    numbers.most = row.most;
    numbers.above = row.above;
    return range_text(numbers) + or_words(row);
  }
  if (!row.choices.empty()) return base::join(row.choices, " | ");
  if (row.least && row.most && !row.above)
    return *row.least == *row.most
               ? plain_number(*row.least)
               : fmt::format("{}..{}", plain_number(*row.least), plain_number(*row.most));
  std::string out;
  auto add = [&out](const char* sign, const std::optional<double>& bound) {
    if (bound)
      out += fmt::format("{}{} {}", out.empty() ? "" : " and ", sign, plain_number(*bound));
  };
  add(">=", row.least);
  add(">", row.above);
  add("<=", row.most);
  return out;
}

std::vector<ValueProblem> convert(const Node& node, const Row& row, Value& out) {
  switch (row.type) {
    case Type::boolean:
      return read_scalar<bool>(node, row.type, out);
    case Type::int32:
    case Type::int64:
      return read_scalar<int64_t>(node, row.type, out);
    case Type::real:
      return read_scalar<double>(node, row.type, out);
    case Type::string:
      return read_scalar<std::string>(node, row.type, out);
    case Type::strings:
      return read_list<std::string>(node, row.type, out);
    case Type::integers:
      return read_integers(node, row, out);
    case Type::reals:
      return read_list<double>(node, row.type, out);
    case Type::string_map:
      return read_map<std::string>(node, row.type, out);
    case Type::real_map:
      return read_map<double>(node, row.type, out);
    case Type::duration:
      break;
  }
  // For a duration, the spelling of the key has set the unit.
  return convert_duration(node, row, std::get<Duration>(out));
}

std::vector<ValueProblem> validate(const Row& row, const Value& value) {
  std::vector<ValueProblem> problems;
  auto add = [&problems](std::string suffix, std::string text) {
    if (!text.empty()) problems.push_back({std::move(suffix), std::move(text)});
  };
  auto list = [&add](const auto& values, const auto& check) {
    for (size_t i = 0; i < values.size(); ++i) add(fmt::format("[{}]", i), check(values[i]));
  };
  auto map = [&add](const auto& values, const auto& check) {
    for (const auto& [name, item] : values) add(map_suffix(name), check(item));
  };
  auto integer = [&row](int64_t v) { return check_integer(row, v); };
  auto real = [&row](double v) { return check_number(row, v, plain_number(v)); };
  auto string = [&row](const std::string& v) { return check_string(row, v); };
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, int64_t>) add("", integer(v));
        if constexpr (std::is_same_v<T, double>) add("", real(v));
        if constexpr (std::is_same_v<T, std::string>) add("", string(v));
        if constexpr (std::is_same_v<T, std::vector<std::string>>) list(v, string);
        if constexpr (std::is_same_v<T, std::vector<int64_t>>)
          if (!is_all(v)) list(v, integer);
        if constexpr (std::is_same_v<T, std::vector<double>>) list(v, real);
        if constexpr (std::is_same_v<T, std::map<std::string, std::string>>) map(v, string);
        if constexpr (std::is_same_v<T, std::map<std::string, double>>) map(v, real);
        if constexpr (std::is_same_v<T, Duration>) add("", check_duration(row, v));
      },
      value);
  return problems;
}

}  // namespace config
