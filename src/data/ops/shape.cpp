// SPDX-License-Identifier: Apache-2.0
// reshape and pad_to_shape.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "data/ops/op.hpp"

namespace data {
namespace {

std::vector<int64_t> sizes(const Arguments& a, std::string_view name, int64_t least) {
  // Limit in elements. Smaller sizes may still be too large for the element type; the pipeline
  // refuses them.
  constexpr int64_t kMost = int64_t{1} << 32;
  std::vector<int64_t> out;
  int64_t all = 1;
  for (float x : a.numbers(name)) {
    if (x != std::floor(x) || x < float(least) || x > float(1 << 24))
      a.fail(name, "sizes must be whole numbers from 1 to 16777216");
    out.push_back(int64_t(x));
    if (out.back() > 0 && (all *= out.back()) > kMost)
      a.fail(name, fmt::format("more than {} elements", kMost));
  }
  return out;
}

const FieldSpec& numbers_of(const Spec& spec, const std::string& key) {
  const FieldSpec& in = field_of(spec, key);
  if (in.kind != FieldSpec::Kind::array)
    base::fail(base::Exit::config, "field '{}' is {}, not an array", key, text_of(in));
  return in;
}

class Reshape : public Op {
 public:
  explicit Reshape(const Arguments& a) : keys_(keys_of(a)), shape_(sizes(a, "new_shape", 1)) {}

  Spec propagate(Spec spec) const override {
    FieldSpec in = numbers_of(spec, keys_.in);
    if (in.fixed() && count_of(in.shape) != count_of(shape_))
      base::fail(base::Exit::config, "an array {} does not have the {} elements of new_shape {}",
                 text_of(in.shape), count_of(shape_), text_of(shape_));
    in.shape = shape_;
    spec[keys_.out] = in;
    return spec;
  }

  void apply(Sample& sample, const OpContext&) const override {
    Array out = array_of(sample, keys_.in);
    if (out.count() != count_of(shape_))
      base::fail(base::Exit::data, "an array {} cannot become {}", text_of(out.shape),
                 text_of(shape_));
    out.shape = shape_;
    sample[keys_.out] = std::move(out);
  }

 private:
  Keys keys_;
  std::vector<int64_t> shape_;
};

class PadToShape : public Op {
 public:
  explicit PadToShape(const Arguments& a)
      : keys_(keys_of(a)),
        shape_(sizes(a, "shape", 1)),
        value_(a.number("pad_value")),
        where_(a.text("where")) {
    if (where_ != "before" && where_ != "after" && where_ != "both")
      a.fail("where",
             fmt::format("where is \"{}\"; it may be \"before\", \"after\" or \"both\"", where_));
  }

  Spec propagate(Spec spec) const override {
    FieldSpec in = numbers_of(spec, keys_.in);
    bool fits = in.shape.size() == shape_.size();
    for (size_t i = 0; fits && i < shape_.size(); ++i) fits = in.shape[i] <= shape_[i];
    if (!fits)
      base::fail(base::Exit::config, "{} cannot be padded to {}", text_of(in), text_of(shape_));
    if (in.type == device::DType::u8 &&
        (value_ != std::floor(value_) || value_ < 0 || value_ > 255))
      base::fail(base::Exit::config, "pad_value {} is not a value of {}", value_, text_of(in));
    if (in.type == device::DType::i32 &&
        (value_ != std::floor(value_) || std::abs(value_) > INT32_MAX))
      base::fail(base::Exit::config, "pad_value {} is not a value of {}", value_, text_of(in));
    in.shape = shape_;
    if (in.limit) in.limit = value_ < 0 ? 0 : std::max<int64_t>(in.limit, int64_t(value_) + 1);
    spec[keys_.out] = in;
    return spec;
  }

  void apply(Sample& sample, const OpContext&) const override {
    const Array& in = array_of(sample, keys_.in);
    std::vector<int64_t> before;
    if (in.shape.size() != shape_.size()) bad(in);
    for (size_t i = 0; i < shape_.size(); ++i) {
      int64_t more = shape_[i] - in.shape[i];
      if (more < 0) bad(in);
      before.push_back(where_ == "before" ? more : where_ == "both" ? more / 2 : 0);
    }
    Array out(in.type, shape_);
    fill(out);
    if (in.count() > 0) copy(in, out, before);
    sample[keys_.out] = std::move(out);
  }

 private:
  [[noreturn]] void bad(const Array& in) const {
    base::fail(base::Exit::data, "an array {} cannot be padded to {}", text_of(in.shape),
               text_of(shape_));
  }
  void fill(Array& out) const {
    if (out.type == device::DType::u8) std::fill_n(out.u8(), out.count(), uint8_t(value_));
    if (out.type == device::DType::f32) std::fill_n(out.f32(), out.count(), float(value_));
    if (out.type == device::DType::i32) std::fill_n(out.i32(), out.count(), int32_t(value_));
  }
  // Copies runs along the last axis to their places in the other axes.
  static void copy(const Array& in, Array& out, const std::vector<int64_t>& before) {
    size_t size = size_t(device::size_of(in.type)), axes = in.shape.size();
    int64_t run = in.shape.back(), runs = in.count() / run;
    for (int64_t r = 0; r < runs; ++r) {
      int64_t rest = r, to = before.back(), stride = out.shape.back();
      for (size_t i = axes - 1; i-- > 0;) {
        to += (rest % in.shape[i] + before[i]) * stride;
        rest /= in.shape[i];
        stride *= out.shape[i];
      }
      std::memcpy(out.bytes.data() + size_t(to) * size, in.bytes.data() + size_t(r * run) * size,
                  size_t(run) * size);
    }
  }

  Keys keys_;
  std::vector<int64_t> shape_;
  double value_;
  std::string where_;
};

std::vector<Parameter> with_keys(std::vector<Parameter> own) {
  for (Parameter& p : key_parameters("image", "image")) own.push_back(std::move(p));
  return own;
}

}  // namespace

OpRow reshape_row() {
  return {"reshape", "the same elements in another shape",
          with_keys({{"new_shape", Parameter::Type::numbers, "", "[16, 3]"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Reshape>(a);
          }};
}

OpRow pad_to_shape_row() {
  return {"pad_to_shape", "pads an array to a fixed shape",
          with_keys({{"shape", Parameter::Type::numbers, "", "[8, 6, 3]"},
                     {"pad_value", Parameter::Type::number, "0", "value of the padding"},
                     {"where", Parameter::Type::text, "\"after\"",
                      "\"before\", \"after\" or \"both\" sides"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<PadToShape>(a);
          }};
}

}  // namespace data
