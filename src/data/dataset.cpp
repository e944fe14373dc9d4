// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/bad_sample.hpp"
#include "data/sources/file.hpp"
#include "data/sources/subset.hpp"

namespace data {

namespace {

bool has_floats(const Spec& spec) {
  for (const auto& [name, field] : spec)
    if (field.kind == FieldSpec::Kind::array && field.type == device::DType::f32) return true;
  return false;
}

// Refuses floats that are not finite. One of them would make the loss not finite, and no message
// would name the sample. Floats made from bytes are finite, so only sources of floats are checked.
void check_finite(const Sample& sample) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const auto& [field, value] : sample) {
    const Array* a = std::get_if<Array>(&value);
    if (!a || a->type != device::DType::f32) continue;
    const float *begin = a->f32(), *end = begin + a->count();
    bool finite = true;  // no early exit, so that the compiler uses vectors
    for (const float* v = begin; v != end; ++v) finite &= std::abs(*v) <= kLargest;
    if (finite) continue;
    const float* bad = std::find_if_not(begin, end, [](float v) { return std::isfinite(v); });
    base::fail(base::Exit::data,
               "field '{}' holds {} at element {} of {}; all elements must be finite", field, *bad,
               bad - begin, end - begin);
  }
}

}  // namespace

Dataset::Dataset(std::string name, std::unique_ptr<Source> source, Pipeline pipeline,
                 std::map<std::string, ValueLimit> limits)
    : name_(std::move(name)),
      source_(std::move(source)),
      pipeline_(std::move(pipeline)),
      limits_(std::move(limits)) {}

Sample Dataset::get(int64_t index, int64_t position, const Places* places, Trace* trace) const {
  try {
    Sample sample = source_->read(index);
    const bool floats = has_floats(pipeline_.input());
    if (floats) check_finite(sample);
    if (trace)  // images that need no decoding
      for (auto& [field, value] : sample)
        if (const Array* a = std::get_if<Array>(&value); a && a->shape.size() == 3)
          trace->images[field] = {a->shape[0], a->shape[1]};
    pipeline_.apply(sample, position, places, trace, index);
    if (floats) check_finite(sample);  // ops may overflow
    for (auto& [field, known] : spec()) {
      auto it = sample.find(field);
      CHECK(it != sample.end(), "field '{}' is missing after all ops", field);
      if (std::string problem = mismatch(known, it->second); !problem.empty())
        base::fail(base::Exit::data, "field '{}' {}", field, problem);
      auto limit = limits_.find(field);
      if (limit == limits_.end() || known.kind != FieldSpec::Kind::array ||
          known.type != device::DType::i32)
        continue;
      const Array& a = std::get<Array>(it->second);
      for (int64_t i = 0; i < a.count(); ++i)
        if (a.i32()[i] < 0 || a.i32()[i] >= limit->second.below)
          base::fail(base::Exit::data, "field '{}' holds {}, which is not in [0, {}) ({})", field,
                     a.i32()[i], limit->second.below, limit->second.key);
    }
    return sample;
  } catch (const base::Error& e) {
    bool bad = e.code() == base::Exit::data && !dynamic_cast<const Unreadable*>(&e);
    if (bad)
      throw BadSampleError(
          {name_, base::one_line(source_->key(index)), base::one_line(e.what(), 300)});
    base::fail(e.code(), "data.{}: {}: {}", name_, source_->key(index), e.what());
  }
}

Classes Dataset::classes(const Spec& spec, const std::string& field,
                         const OpenContext& context) const {
  try {
    return read_classes(*source_, spec, field, context);
  } catch (const base::Error& e) {
    base::fail(e.code(), "data.{}: {}", name_, e.what());
  }
}

std::unique_ptr<Dataset> open_dataset(const Sections& sections, const Tokenizers& tokenizers,
                                      const std::string& name, const OpenContext& context) {
  try {
    std::string preprocess = sections.preprocess_of(name);
    const SourceOptions* options = sections.data.at(name).source_options();
    CHECK(options, "no source options");
    // Checks the string and opens tokenizers first: both fail faster than indexing a source.
    Pipeline pipeline(preprocess, options->spec(), {.tokenizers = &tokenizers, .open = true},
                      context.seed);
    for (const std::string& field : context.bytes_fields)
      if (pipeline.spec().contains(field)) pipeline.leave_bytes(field);
    const DataOptions& own = sections.data.at(name);
    return std::make_unique<Dataset>(name,
                                     subset_of(
                                         options->open(context), own.part,
                                         [&](const Source& source) {
                                           return read_classes(source, options->spec(),
                                                               own.class_field, context);
                                         },
                                         context),
                                     std::move(pipeline), context.limits);
  } catch (const base::Error& e) {
    base::fail(e.code(), "data.{}: {}", name, e.what());
  }
}

}  // namespace data
