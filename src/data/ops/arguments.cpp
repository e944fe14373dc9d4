// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of a call against the op's parameters.
#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/hint.hpp"
#include "data/ops/op.hpp"

namespace data {
namespace {

using base::Exit;
using Type = Parameter::Type;

template <class T>
bool is(const Literal& value) {
  return std::holds_alternative<T>(value);
}
bool is_number(const Literal& v) { return is<int64_t>(v) || is<double>(v); }
double as_number(const Literal& v) {
  return is<double>(v) ? std::get<double>(v) : double(std::get<int64_t>(v));
}

const char* expected(Type type) {
  switch (type) {
    case Type::flag:
      return "True or False";
    case Type::integer:
      return "a whole number";
    case Type::number:
      return "a number";
    case Type::numbers:
      return "a number or a list of numbers";
    case Type::pairs:
      return "a pair of numbers such as [0.1, 1], or a list of pairs";
    case Type::text:
      return "a text in quotes";
    case Type::size:
      return "a size such as 64 or [48, 64] (height, width), each of 1..65536";
    case Type::id:
      return "a whole number or a piece in quotes";
    case Type::texts:
      return "texts in quotes";
  }
  return "";
}

bool all_items(const Literal& v, bool (*test)(const Literal&)) {
  const LiteralList* list = std::get_if<LiteralList>(&v);
  return list && !list->empty() && std::all_of(list->begin(), list->end(), test);
}
bool is_pair(const Literal& v) {
  return all_items(v, is_number) && std::get<LiteralList>(v).size() == 2;
}

bool fits(const Literal& v, Type type) {
  constexpr int64_t kLargestSide = 65536;
  auto side = [](const Literal& x) {
    return is<int64_t>(x) && std::get<int64_t>(x) >= 1 && std::get<int64_t>(x) <= kLargestSide;
  };
  switch (type) {
    case Type::flag:
      return is<bool>(v);
    case Type::integer:
      return is<int64_t>(v);
    case Type::number:
      return is_number(v);
    case Type::numbers:
      return is_number(v) || all_items(v, is_number);
    case Type::pairs:
      return is_pair(v) || all_items(v, is_pair);
    case Type::text:
      return is<std::string>(v);
    case Type::size:
      return side(v) || (all_items(v, side) && std::get<LiteralList>(v).size() == 2);
    case Type::id:
      return is<int64_t>(v) || is<std::string>(v);
    case Type::texts:
      return all_items(v, is<std::string>);
  }
  return false;
}

}  // namespace

Arguments::Arguments(const Call& call, std::span<const Parameter> parameters, std::string_view text)
    : op_(call.name), text_(text) {
  std::vector<std::string> names;
  for (const Parameter& p : parameters) {
    names.push_back(p.name);
    bound_.push_back({&p, {}, std::string::npos});
  }
  bool takes_all = !parameters.empty() && parameters[0].type == Type::texts;
  LiteralList all;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const Argument& a = call.arguments[i];
    auto problem = [&](const std::string& what) {
      base::fail(Exit::config, "{}: {}: {}", place(text, a.at), op_, what);
    };
    size_t which = a.name.empty()
                       ? (takes_all ? 0 : i)
                       : size_t(std::find(names.begin(), names.end(), a.name) - names.begin());
    if (which >= parameters.size()) {
      if (a.name.empty()) problem(fmt::format("too many arguments; it takes {}", list_of(names)));
      problem(fmt::format("unknown argument '{}'{}; it takes {}", a.name,
                          nearest_hint(a.name, names), list_of(names)));
    }
    Bound& b = bound_[which];
    if (takes_all && a.name.empty()) {
      if (!is<std::string>(a.value))
        problem(fmt::format("expects {}, not {}", expected(Type::texts), text_of(a.value)));
      if (b.at == std::string::npos) b.at = a.at;
      all.push_back(a.value);
      continue;
    }
    if (b.at != std::string::npos)
      problem(fmt::format("argument '{}' is given twice", b.parameter->name));
    b.at = a.at;
    b.value = a.value;
    bool none = is<std::monostate>(a.value) && b.parameter->otherwise == "None";
    if (!none && !fits(a.value, b.parameter->type))
      problem(fmt::format("argument '{}' is {}, expected {}", b.parameter->name, text_of(a.value),
                          expected(b.parameter->type)));
  }
  if (!all.empty()) bound_[0].value = Literal(std::move(all));
  for (Bound& b : bound_) {
    if (b.at != std::string::npos) continue;
    b.at = call.at;
    if (b.parameter->otherwise.empty())
      base::fail(Exit::config, "{}: {}: argument '{}' ({}) is missing", place(text, call.at), op_,
                 b.parameter->name, b.parameter->doc);
    // A default is written like an argument, so the same parser reads it.
    b.value = parse_calls(fmt::format("x({})", b.parameter->otherwise)).at(0).arguments.at(0).value;
  }
}

const Arguments::Bound& Arguments::bound(std::string_view name) const {
  for (const Bound& b : bound_)
    if (b.parameter->name == name) return b;
  CHECK(false, "op {} has no parameter {}", op_, name);
  return bound_.front();
}

void Arguments::fail(std::string_view name, std::string_view what) const {
  base::fail(Exit::config, "{}: {}: {}", place(text_, bound(name).at), op_, what);
}

const Literal& Arguments::raw(std::string_view name) const { return bound(name).value; }
bool Arguments::has(std::string_view name) const { return !is<std::monostate>(raw(name)); }
bool Arguments::flag(std::string_view name) const { return std::get<bool>(raw(name)); }
int64_t Arguments::integer(std::string_view name) const { return std::get<int64_t>(raw(name)); }
double Arguments::number(std::string_view name) const { return as_number(raw(name)); }
std::string Arguments::text(std::string_view name) const {
  return std::get<std::string>(raw(name));
}

std::vector<float> Arguments::numbers(std::string_view name) const {
  const Literal& v = raw(name);
  if (is_number(v)) return {float(as_number(v))};
  std::vector<float> out;
  for (const Literal& item : std::get<LiteralList>(v)) out.push_back(float(as_number(item)));
  return out;
}

std::vector<std::pair<double, double>> Arguments::pairs(std::string_view name) const {
  const LiteralList& list = std::get<LiteralList>(raw(name));
  const auto pair = [](const LiteralList& two) {
    return std::pair(as_number(two[0]), as_number(two[1]));
  };
  if (is_pair(raw(name))) return {pair(list)};
  std::vector<std::pair<double, double>> out;
  for (const Literal& item : list) out.push_back(pair(std::get<LiteralList>(item)));
  return out;
}

std::vector<std::string> Arguments::texts(std::string_view name) const {
  std::vector<std::string> out;
  for (const Literal& item : std::get<LiteralList>(raw(name)))
    out.push_back(std::get<std::string>(item));
  return out;
}

std::pair<int64_t, int64_t> Arguments::size(std::string_view name) const {
  const Literal& v = raw(name);
  if (is<int64_t>(v)) return {std::get<int64_t>(v), std::get<int64_t>(v)};
  const LiteralList& list = std::get<LiteralList>(v);
  return {std::get<int64_t>(list[0]), std::get<int64_t>(list[1])};
}

std::string signature(const OpRow& row) {
  std::vector<std::string> parts;
  for (const Parameter& p : row.parameters)
    parts.push_back(p.type == Type::texts ? fmt::format("*{}", p.name)
                    : p.otherwise.empty() ? p.name
                                          : fmt::format("{}={}", p.name, p.otherwise));
  return fmt::format("{}({})", row.name, base::join(parts, ", "));
}

std::vector<Parameter> key_parameters(const std::string& in, const std::string& out) {
  return {{"inkey", Type::text, fmt::format("\"{}\"", in), "field to read"},
          {"outkey", Type::text, fmt::format("\"{}\"", out), "field to write"},
          {"key", Type::text, "None", "field to read and write"}};
}

Keys keys_of(const Arguments& arguments) {
  if (arguments.has("key")) return {arguments.text("key"), arguments.text("key")};
  return {arguments.text("inkey"), arguments.text("outkey")};
}

const FieldSpec& field_of(const Spec& spec, const std::string& key) {
  auto it = spec.find(key);
  if (it == spec.end())
    base::fail(Exit::config, "there is no field '{}' here; there is {}", key, text_of(spec));
  return it->second;
}

Value& value_of(Sample& sample, const std::string& key) {
  auto it = sample.find(key);
  if (it == sample.end()) base::fail(Exit::data, "the sample has no field '{}'", key);
  return it->second;
}

Array& array_of(Sample& sample, const std::string& key) {
  Array* array = std::get_if<Array>(&value_of(sample, key));
  if (!array) base::fail(Exit::data, "field '{}' is not an array", key);
  return *array;
}

Array array_for(const OpContext& context, const std::string& key, device::DType type,
                std::vector<int64_t> shape, const Array& from) {
  if (context.places)
    if (auto it = context.places->find(key); it != context.places->end()) {
      auto [data, size] = std::pair(it->second.data(), it->second.size());
      if (int64_t(size) == count_of(shape) * device::size_of(type) && from.bytes.data() != data) {
        Array out;
        out.type = type;
        out.shape = std::move(shape);
        out.bytes = Bytes::borrowed(data, size);
        return out;
      }
    }
  return Array(type, std::move(shape));
}

}  // namespace data
