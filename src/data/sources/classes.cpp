// SPDX-License-Identifier: Apache-2.0
#include "data/sources/classes.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <thread>

#include "base/cancel.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "data/hint.hpp"

namespace data {
namespace {

void check_field(const Spec& spec, const std::string& field) {
  using FieldKind = FieldSpec::Kind;
  const auto found = spec.find(field);
  if (found == spec.end()) {
    std::vector<std::string> names;
    for (const auto& [name, known] : spec) names.push_back(name);
    base::fail(base::Exit::config, "class_field: the source has no field '{}'{}; it has {}", field,
               nearest_hint(field, names), list_of(names));
  }
  const FieldSpec& known = found->second;
  if (known.kind == FieldKind::text ||
      (known.kind == FieldKind::array && known.shape.empty() && known.type == device::DType::i32))
    return;
  base::fail(
      base::Exit::config,
      "class_field: field '{}' is {}, and a class is a whole number or a text{}", field,
      text_of(known),
      known.kind == FieldKind::texts ? "; sample = \"caption\" gives each row its own sample" : "");
}

std::string class_of(const Source& source, int64_t index, const std::string& field) {
  try {
    const Value value = source.field(index, field);
    if (const Array* a = std::get_if<Array>(&value)) return std::to_string(*a->i32());
    return std::string(base::trim(std::get<std::string>(value)));
  } catch (const base::Error& e) {
    base::fail(e.code(), "{}: {}", source.key(index), e.what());
  }
}

// n * p / parts, without a product that overflows.
int64_t part_begin(int64_t n, int64_t p, int64_t parts) {
  return n / parts * p + n % parts * p / parts;
}

}  // namespace

Classes read_classes(const Source& source, const Spec& spec, const std::string& field, int threads,
                     const std::stop_token& token) {
  check_field(spec, field);
  const int64_t n = source.size(), parts = std::max(1, threads);
  // Each thread numbers the classes of its part by their first appearance.
  struct Part {
    std::map<std::string, uint32_t> numbers;
    base::PackedNumbers of_sample;
    std::exception_ptr error;
  };
  std::vector<Part> found(static_cast<size_t>(parts));
  auto work = [&](int64_t p) {
    Part& part = found[size_t(p)];
    const int64_t begin = part_begin(n, p, parts), end = part_begin(n, p + 1, parts);
    try {
      part.of_sample = base::PackedNumbers(end - begin, 0);
      for (int64_t i = begin; i < end; ++i) {
        base::end_if_asked(token);
        const std::string name = class_of(source, i, field);
        part.of_sample.set(
            i - begin, part.numbers.try_emplace(name, uint32_t(part.numbers.size())).first->second);
      }
    } catch (...) {
      part.error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int64_t p = 1; p < parts; ++p)
      helpers.push_back(base::thread("classes", [&work, p] { work(p); }));
    work(0);
  }
  std::map<std::string, uint32_t> all;
  for (const Part& part : found) {
    if (part.error) std::rethrow_exception(part.error);
    for (const auto& [name, number] : part.numbers) all[name] = 0;
  }
  Classes out;
  for (auto& [name, number] : all) {
    number = uint32_t(out.names.size());
    out.names.push_back(name);
  }
  out.sizes.resize(out.names.size());
  out.of_sample = base::PackedNumbers(n, uint32_t(std::max<size_t>(out.names.size(), 1) - 1));
  for (int64_t p = 0; p < parts; ++p) {
    const Part part = std::move(found[size_t(p)]);
    std::vector<uint32_t> final_number(part.numbers.size());
    for (const auto& [name, number] : part.numbers) final_number[number] = all.at(name);
    for (int64_t i = 0, begin = part_begin(n, p, parts); i < part.of_sample.size(); ++i) {
      const uint32_t number = final_number[part.of_sample[i]];
      out.of_sample.set(begin + i, number);
      ++out.sizes[number];
    }
  }
  return out;
}

}  // namespace data
