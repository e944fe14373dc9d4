// SPDX-License-Identifier: Apache-2.0
// class_number: converts a text that names a class to the number of the class.
#include <optional>

#include "base/error.hpp"
#include "base/path.hpp"
#include "base/text.hpp"
#include "data/ops/op.hpp"
#include "data/sources/class_names.hpp"
#include "data/sources/plain_text.hpp"

namespace data {
namespace {

class ClassNumber : public Op {
 public:
  ClassNumber(const Arguments& a, const OpEnvironment& environment)
      : in_(a.text("inkey")), out_(a.text("outkey")), numbers_(!a.has("classes")) {
    if (!numbers_)
      if (const std::string problem = base::path_problem(a.text("classes")); !problem.empty())
        a.fail("classes", problem);
    if (!numbers_ && environment.open) classes_.emplace(a.text("classes"));
  }

  Spec propagate(Spec spec) const override {
    const FieldSpec& in = field_of(spec, in_);
    if (in.kind != FieldSpec::Kind::text)
      base::fail(base::Exit::config, "field '{}' is {}, not text{}", in_, text_of(in),
                 in.kind == FieldSpec::Kind::texts ? "; put choice before it" : "");
    spec[out_] = FieldSpec::array(device::DType::i32, {}, classes_ ? classes_->size() : 0);
    return spec;
  }

  void apply(Sample& sample, const OpContext&) const override {
    const std::string* text = std::get_if<std::string>(&value_of(sample, in_));
    if (!text) base::fail(base::Exit::data, "field '{}' is not text", in_);
    const std::string_view name = base::trim(*text);
    Array out(device::DType::i32, {});
    *out.i32() = numbers_ ? number_in(name) : classes_->number_of(name);
    sample[out_] = std::move(out);
  }
  bool touches(const std::string& field) const override { return field == in_ || field == out_; }

 private:
  int32_t number_in(std::string_view digits) const {
    const std::optional<int32_t> number = whole_number(digits);
    if (!number)
      base::fail(
          base::Exit::data,
          "field '{}' holds {}, not a whole number; class_number(classes=\"FILE\") reads names",
          in_, base::quoted(digits, 40));
    return *number;
  }

  std::string in_, out_;
  bool numbers_;
  std::optional<ClassNames> classes_;
};

}  // namespace

OpRow class_number_row() {
  return {"class_number",
          "text -> number of a class, i32",
          {{"classes", Parameter::Type::text, "None",
            "names in the order of their numbers: a file with one per line, or a folder of "
            "sub-folders; default: the text is the number"},
           {"inkey", Parameter::Type::text, "\"text\"", "field to read"},
           {"outkey", Parameter::Type::text, "\"label\"", "field to write"}},
          [](const Arguments& a, const OpEnvironment& environment) -> std::unique_ptr<Op> {
            return std::make_unique<ClassNumber>(a, environment);
          }};
}

}  // namespace data
