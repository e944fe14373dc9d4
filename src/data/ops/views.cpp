// SPDX-License-Identifier: Apache-2.0
#include "data/ops/views.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace data {
namespace {

constexpr size_t kViewAxes = 4;

template <class HoldsViews>
std::vector<std::string> fields_from(const std::string& key, const HoldsViews& holds_views) {
  std::vector<std::string> fields{key};
  if (!holds_views(key)) return fields;
  for (int64_t i = 1; holds_views(key + std::to_string(i)); ++i)
    fields.push_back(key + std::to_string(i));
  return fields;
}

}  // namespace

std::vector<std::string> view_fields(const Spec& spec, const std::string& key) {
  return fields_from(key, [&](const std::string& field) {
    auto it = spec.find(field);
    return it != spec.end() && it->second.kind == FieldSpec::Kind::array &&
           it->second.shape.size() == kViewAxes;
  });
}

std::vector<std::string> view_fields(const Sample& sample, const std::string& key) {
  return fields_from(key, [&](const std::string& field) {
    auto it = sample.find(field);
    const Array* array = it == sample.end() ? nullptr : std::get_if<Array>(&it->second);
    return array && array->shape.size() == kViewAxes;
  });
}

bool is_view_field(const Spec& spec, const std::string& key, const std::string& field) {
  const std::vector<std::string> fields = view_fields(spec, key);
  return std::find(fields.begin(), fields.end(), field) != fields.end();
}

std::string written_field(const Keys& keys, const std::string& field) {
  return keys.out + field.substr(keys.in.size());
}

int64_t count_views(const Spec& spec, const std::string& key) {
  if (field_of(spec, key).shape.size() != kViewAxes) return kNoView;
  int64_t views = 0;
  for (const std::string& field : view_fields(spec, key)) views += spec.at(field).shape[0];
  return views;
}

Draws draws_of(const OpContext& context, int64_t view) {
  return Draws(view == kNoView ? context.stream : context.stream.sub(uint64_t(view)));
}

const FieldSpec& rgb_bytes_of(const Spec& spec, const std::string& key) {
  const FieldSpec& in = field_of(spec, key);
  const bool bytes = in.kind == FieldSpec::Kind::array && in.type == device::DType::u8;
  if (!bytes || (in.shape.size() != 3 && in.shape.size() != kViewAxes) || in.shape.back() != 3)
    base::fail(base::Exit::config, "field '{}' is {}, not RGB bytes{}", key, text_of(in),
               in.kind == FieldSpec::Kind::bytes ? "; put decode before it"
               : in.type == device::DType::f32   ? "; put it before the op that makes floats"
                                                 : "");
  return in;
}

void check_rgb_bytes(const Array& array, const std::string& key) {
  if (array.type != device::DType::u8 || array.shape.size() < 3 || array.shape.size() > kViewAxes ||
      array.shape.back() != 3 || array.count() == 0)
    base::fail(base::Exit::data, "field '{}' is {}, not RGB bytes", key,
               text_of(FieldSpec::array(array.type, array.shape)));
}

pillow::Image view_of(const Array& array, int64_t view) {
  const size_t rank = array.shape.size();
  pillow::Image image{const_cast<uint8_t*>(array.u8()), array.shape[rank - 3],
                      array.shape[rank - 2]};
  if (view != kNoView) image.data += view * image.bytes();
  return image;
}

Spec ViewOp::propagate(Spec spec) const {
  for (const std::string& field : view_fields(spec, keys_.in)) {
    const FieldSpec in = rgb_bytes_of(spec, field);
    spec[written_field(keys_, field)] = in;
  }
  check_views(count_views(spec, keys_.in));
  return spec;
}

void ViewOp::apply(Sample& sample, const OpContext& context) const {
  int64_t first = 0;
  for (const std::string& field : view_fields(sample, keys_.in)) {
    const Array& in = array_of(sample, field);
    check_rgb_bytes(in, field);
    const std::string out = written_field(keys_, field);
    if (out != field) {
      Array copy = in;
      sample[out] = std::move(copy);
    }
    const Array& changed = array_of(sample, out);
    const bool views = changed.shape.size() == kViewAxes;
    const int64_t count = views ? changed.shape[0] : 1;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t view = views ? first + i : kNoView;
      Draws draw = draws_of(context, view);
      visit(view_of(changed, views ? i : kNoView), view, draw);
    }
    first += count;
  }
}

Probability::Probability(const Arguments& arguments, const std::string& name)
    : name_(name), each_(arguments.numbers(name)) {
  for (float p : each_)
    if (!(p >= 0 && p <= 1))
      arguments.fail(name, fmt::format("{} holds {}; a probability is in [0, 1]", name, p));
}

Parameter Probability::parameter(const std::string& name, const std::string& otherwise) {
  return {name, Parameter::Type::numbers, otherwise, "probability, or a list with one per view"};
}

void Probability::check_views(int64_t views) const {
  if (each_.size() == 1) return;
  if (views == kNoView)
    base::fail(base::Exit::config,
               "{} is a list, but there are no views here; put copies or multi_crop before it",
               name_);
  if (int64_t(each_.size()) != views)
    base::fail(base::Exit::config, "{} has {} numbers for {} views; give one number, or {}", name_,
               each_.size(), views, views);
}

std::vector<Parameter> on_views(std::vector<Parameter> own) {
  for (Parameter& p : key_parameters("image", "image")) own.push_back(std::move(p));
  return own;
}

}  // namespace data
