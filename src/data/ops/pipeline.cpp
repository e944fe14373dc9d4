// SPDX-License-Identifier: Apache-2.0
#include "data/ops/pipeline.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "data/images/decode.hpp"

namespace data {
namespace {

using base::Exit;

// Size of the largest image that is read, in f32. A larger field is a typing error, reported before
// memory is allocated.
constexpr int64_t kMostFieldBytes = kMostPixels * 3 * int64_t(sizeof(float));

void check_sizes(const Spec& spec) {
  for (auto& [name, field] : spec) {
    if (!field.fixed()) continue;
    int64_t bytes = device::size_of(field.type);
    for (int64_t d : field.shape)
      if (__builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes) || bytes > kMostFieldBytes)
        base::fail(Exit::config, "field '{}' would be {}; a sample's field has at most {} MiB",
                   name, text_of(field), kMostFieldBytes >> 20);
  }
}

const OpRow& row_of(const Call& call, std::string_view text) {
  if (const OpRow* row = op_rows().find(call.name)) return *row;
  base::fail(Exit::config, "{}: unknown op '{}'{}", place(text, call.at), call.name,
             op_rows().way_out(call.name));
}

// Returns the fields that a call reads and writes, by its arguments inkey, outkey and key.
Keys keys_of_call(const OpRow& row, const Arguments& arguments) {
  auto text = [&](std::string_view name) {
    const bool known = std::any_of(row.parameters.begin(), row.parameters.end(),
                                   [&](const Parameter& p) { return p.name == name; });
    return known && arguments.has(name) ? arguments.text(name) : std::string();
  };
  const std::string key = text("key");
  if (!key.empty()) return {key, key};
  const std::string in = text("inkey"), out = text("outkey");
  return {in, out.empty() ? in : out};
}

}  // namespace

Pipeline::Pipeline(std::string_view text, Spec input, const OpEnvironment& environment,
                   uint64_t seed)
    : input_(input), spec_(std::move(input)) {
  base::Stream streams(seed, "data.op");
  for (const Call& call : parse_calls(text)) {
    const OpRow& row = row_of(call, text);
    Arguments arguments(call, row.parameters, text);
    Stage stage{call.name, row.make(arguments, environment), streams.sub(stages_.size()), spec_,
                keys_of_call(row, arguments)};
    try {
      spec_ = stage.op->propagate(std::move(spec_));
      check_sizes(spec_);
    } catch (const base::Error& e) {
      base::fail(e.code(), "{}: {}: {}", place(text, call.at), call.name, e.what());
    }
    stages_.push_back(std::move(stage));
  }
}

void Pipeline::apply(Sample& sample, int64_t position, const Places* places, Trace* trace,
                     int64_t index) const {
  for (const Stage& stage : stages_) {
    if (stage.left_out) continue;
    try {
      stage.op->apply(sample,
                      {stage.stream.sub(uint64_t(position)), position, index, places, trace});
    } catch (const base::Error& e) {
      base::fail(e.code(), "{}: {}", stage.name, e.what());
    }
  }
}

int Pipeline::scaling_stage(const std::string& field) const {
  for (int i = int(stages_.size()) - 1; i >= 0; --i) {
    const Stage& stage = stages_[size_t(i)];
    if (!stage.op->touches(field)) continue;
    auto before = stage.before.find(field);
    const bool bytes = before != stage.before.end() &&
                       before->second.kind == FieldSpec::Kind::array &&
                       before->second.type == device::DType::u8;
    return bytes && stage.op->byte_scale(stage.before, field) ? i : -1;
  }
  return -1;
}

std::optional<ByteScale> Pipeline::byte_scale(const std::string& field) const {
  const int stage = scaling_stage(field);
  if (stage < 0 || !spec_.contains(field)) return {};
  return stages_[size_t(stage)].op->byte_scale(stages_[size_t(stage)].before, field);
}

void Pipeline::leave_bytes(const std::string& field) {
  const int stage = scaling_stage(field);
  CHECK(stage >= 0, "field '{}' is not made from bytes by an op that only scales", field);
  // The op may scale several fields of views.
  for (auto& [name, known] : spec_)
    if (scaling_stage(name) == stage) known.type = device::DType::u8;
  stages_[size_t(stage)].left_out = true;
}

std::string Pipeline::keep_only(const std::string& field) {
  std::string from = field;
  for (size_t i = stages_.size(); i-- > 0;) {
    if (stages_[i].keys.out == from)
      from = stages_[i].keys.in;
    else
      stages_[i].left_out = true;
  }
  spec_ = {{field, spec_.at(field)}};
  return from;
}

bool Pipeline::tokenize(const std::string& field, const std::string& text,
                        std::vector<int32_t>& ids, int32_t& padding) const {
  for (size_t i = stages_.size(); i-- > 0;)
    if (stages_[i].op->tokenize(field, text, ids, padding)) return true;
  return false;
}

const Tokenizer* Pipeline::tokenizer(const std::string& field) const {
  const Tokenizer* last = nullptr;
  for (const Stage& stage : stages_)
    if (const Tokenizer* t = stage.op->tokenizer(field)) last = t;
  return last;
}

std::map<std::string, int64_t> Pipeline::counts() const {
  std::map<std::string, int64_t> out;
  for (const Stage& stage : stages_) stage.op->count(out);
  return out;
}

std::string syntax_problem(std::string_view text) {
  try {
    for (const Call& call : parse_calls(text)) Arguments(call, row_of(call, text).parameters, text);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace data
