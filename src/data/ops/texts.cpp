// SPDX-License-Identifier: Apache-2.0
// choice and lower.
#include <algorithm>

#include "base/error.hpp"
#include "data/ops/image_op.hpp"

namespace data {
namespace {

// Chooses one entry along the first axis, uniformly at random, and removes that axis. A single text
// counts as a list of one; an empty list gives "", as published.
class Choice : public Op {
 public:
  explicit Choice(const Arguments& a)
      : in_(a.has("key") ? a.text("key") : text_or(a, "inkey", "")), out_(in_) {
    if (a.text("n") != "single") a.fail("n", "only n=\"single\", one entry, is known");
    if (in_.empty()) a.fail("inkey", "which field? Give inkey (and outkey) or key");
    if (!a.has("key")) out_ = text_or(a, "outkey", in_);
  }

  Spec propagate(Spec spec) const override {
    FieldSpec in = field_of(spec, in_);
    using Kind = FieldSpec::Kind;
    if (in.kind == Kind::bytes || (in.kind == Kind::array && in.shape.empty()))
      base::fail(base::Exit::config, "field '{}' is {}: there is nothing to choose from", in_,
                 text_of(in));
    if (in.kind == Kind::array)
      in.shape.erase(in.shape.begin());
    else
      in = FieldSpec::characters();
    spec[out_] = in;
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Value& all = value_of(sample, in_);
    if (const Texts* texts = std::get_if<Texts>(&all); texts && context.trace)
      context.trace->choices[out_] = *texts;
    Value chosen = chosen_from(all, context);
    sample[out_] = std::move(chosen);
  }
  bool touches(const std::string& field) const override { return field == in_ || field == out_; }

 private:
  static std::string text_or(const Arguments& a, std::string_view name,
                             const std::string& otherwise) {
    return a.has(name) ? a.text(name) : otherwise;
  }

  Value chosen_from(const Value& in, const OpContext& context) const {
    Draws draw(context.stream);
    if (const std::string* text = std::get_if<std::string>(&in)) return *text;
    if (const Texts* texts = std::get_if<Texts>(&in))
      return texts->empty() ? std::string() : (*texts)[size_t(draw.below(int64_t(texts->size())))];
    const Array* array = std::get_if<Array>(&in);
    if (!array || array->shape.empty() || array->shape[0] == 0)
      base::fail(base::Exit::data, "field '{}' holds nothing to choose from", in_);
    Array out(array->type, {array->shape.begin() + 1, array->shape.end()});
    const uint8_t* from =
        array->bytes.data() + size_t(draw.below(array->shape[0])) * out.bytes.size();
    std::copy(from, from + out.bytes.size(), out.bytes.data());
    return out;
  }

  std::string in_, out_;
};

class Lower : public Op {
 public:
  explicit Lower(const Arguments& a) : keys_(keys_of(a)) {}

  Spec propagate(Spec spec) const override {
    FieldSpec in = field_of(spec, keys_.in);
    if (in.kind != FieldSpec::Kind::text && in.kind != FieldSpec::Kind::texts)
      base::fail(base::Exit::config, "field '{}' is {}, not text", keys_.in, text_of(in));
    spec[keys_.out] = in;
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    if (context.trace && context.trace->choices.contains(keys_.in)) {
      Texts all = context.trace->choices[keys_.in];
      for (std::string& t : all) t = ascii_lower(std::move(t));
      context.trace->choices[keys_.out] = std::move(all);
    }
    Value value = value_of(sample, keys_.in);
    if (std::string* text = std::get_if<std::string>(&value))
      *text = ascii_lower(std::move(*text));
    else if (Texts* texts = std::get_if<Texts>(&value))
      for (std::string& t : *texts) t = ascii_lower(std::move(t));
    else
      base::fail(base::Exit::data, "field '{}' is not text", keys_.in);
    sample[keys_.out] = std::move(value);
  }
  bool touches(const std::string& field) const override {
    return field == keys_.in || field == keys_.out;
  }

 private:
  Keys keys_;
};

}  // namespace

OpRow choice_row() {
  using Type = Parameter::Type;
  return {"choice",
          "one entry at random, of texts or along the first axis of an array",
          {{"n", Type::text, "\"single\"", "\"single\": one entry"},
           {"inkey", Type::text, "None", "field to read"},
           {"outkey", Type::text, "None", "field to write; default: the same"},
           {"key", Type::text, "None", "field to read and write"}},
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Choice>(a);
          }};
}

OpRow lower_row() {
  return {"lower", "lower case; ASCII letters only, as published", key_parameters("text", "text"),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Lower>(a);
          }};
}

}  // namespace data
