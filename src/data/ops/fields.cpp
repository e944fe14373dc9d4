// SPDX-License-Identifier: Apache-2.0
// keep, drop, copy, index: choose the fields of a sample.
#include <algorithm>

#include "base/error.hpp"
#include "data/ops/op.hpp"

namespace data {
namespace {

class KeepOrDrop : public Op {
 public:
  KeepOrDrop(const Arguments& a, bool keep) : names_(a.texts("fields")), keep_(keep) {}

  Spec propagate(Spec spec) const override {
    for (const std::string& name : names_) field_of(spec, name);
    std::erase_if(spec, [&](const auto& field) { return is_dropped(field.first); });
    return spec;
  }

  void apply(Sample& sample, const OpContext&) const override {
    std::erase_if(sample, [&](const auto& field) { return is_dropped(field.first); });
  }
  bool touches(const std::string& field) const override { return is_dropped(field); }

 private:
  bool is_dropped(const std::string& name) const {
    return (std::find(names_.begin(), names_.end(), name) != names_.end()) != keep_;
  }
  std::vector<std::string> names_;
  bool keep_;
};

class Copy : public Op {
 public:
  Copy(std::string in, std::string out) : in_(std::move(in)), out_(std::move(out)) {}

  Spec propagate(Spec spec) const override {
    FieldSpec field = field_of(spec, in_);
    spec[out_] = field;
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    Value value = value_of(sample, in_);
    sample[out_] = std::move(value);
    if (!context.trace) return;
    auto choices = context.trace->choices.find(in_);
    if (choices != context.trace->choices.end())
      context.trace->choices[out_] = Texts(choices->second);
    else
      context.trace->choices.erase(out_);
  }
  bool touches(const std::string& field) const override { return field == in_ || field == out_; }

 private:
  std::string in_, out_;
};

// Adds the number of the sample within its data set.
class SampleIndex : public Op {
 public:
  explicit SampleIndex(const Arguments& a) : key_(a.text("key")) {}

  Spec propagate(Spec spec) const override {
    spec[key_] = FieldSpec::array(device::DType::i32, {});
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    if (context.index < 0 || context.index > INT32_MAX)
      base::fail(base::Exit::data, "the sample's number {} does not fit into i32", context.index);
    Array out(device::DType::i32, {});
    *out.i32() = int32_t(context.index);
    sample[key_] = std::move(out);
  }
  bool touches(const std::string& field) const override { return field == key_; }

 private:
  std::string key_;
};

}  // namespace

OpRow keep_row() {
  return {"keep",
          "drops all fields but these",
          {{"fields", Parameter::Type::texts, "", "names of fields"}},
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<KeepOrDrop>(a, true);
          }};
}

OpRow drop_row() {
  return {"drop",
          "drops these fields",
          {{"fields", Parameter::Type::texts, "", "names of fields"}},
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<KeepOrDrop>(a, false);
          }};
}

OpRow copy_row() {
  return {"copy",
          "the same value under another name",
          {{"inkey", Parameter::Type::text, "", "field to read"},
           {"outkey", Parameter::Type::text, "", "field to write"}},
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Copy>(a.text("inkey"), a.text("outkey"));
          }};
}

// The published data set holds captions in a nested table. Sources here yield them as the field
// "captions".
OpRow coco_captions_row() {
  return {"coco_captions",
          "the field captions under another name",
          {{"outkey", Parameter::Type::text, "\"captions\"", "field to write"}},
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Copy>("captions", a.text("outkey"));
          }};
}

OpRow index_row() {
  return {"index",
          "the sample's number within its data set, i32",
          {{"key", Parameter::Type::text, "\"index\"", "field to write"}},
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<SampleIndex>(a);
          }};
}

}  // namespace data
