// SPDX-License-Identifier: Apache-2.0
// onehot, randu, and the two fixed normalisations of pixels.
#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "data/ops/image_op.hpp"

// Products and sums must not be fused, as in value_range.cpp.

namespace data {
namespace {

// Converts a label to a vector. Labels [n] become one vector that has them all (multi) or n
// vectors.
class Onehot : public Op {
 public:
  explicit Onehot(const Arguments& a)
      : in_(a.text("key")),
        out_(a.has("key_result") ? a.text("key_result") : in_),
        depth_(a.integer("depth")),
        multi_(a.flag("multi")),
        on_(float(a.number("on"))),
        off_(float(a.number("off"))) {
    if (depth_ < 1 || depth_ > (1 << 24)) a.fail("depth", fmt::format("a vector of {}", depth_));
  }

  Spec propagate(Spec spec) const override {
    FieldSpec in = field_of(spec, in_);
    if (in.kind != FieldSpec::Kind::array || in.type != device::DType::i32)
      base::fail(base::Exit::config, "field '{}' is {}, not whole numbers", in_, text_of(in));
    spec[out_] = FieldSpec::array(device::DType::f32, shape_for(in.shape));
    return spec;
  }

  void apply(Sample& sample, const OpContext&) const override {
    const Array& in = array_of(sample, in_);
    bool one = multi_ && !in.shape.empty();
    Array out(device::DType::f32, shape_for(in.shape));
    std::fill(out.f32(), out.f32() + out.count(), off_);
    for (int64_t i = 0; i < in.count(); ++i) {
      int64_t label = in.i32()[i];
      if (label >= 0 && label < depth_)
        out.f32()[(one ? 0 : i * depth_) + label] = on_;
      else if (one)  // a single label outside gives a vector of `off`, as published
        base::fail(base::Exit::data, "label {} of '{}' is not in [0, {})", label, in_, depth_);
    }
    sample[out_] = std::move(out);
  }

 private:
  std::vector<int64_t> shape_for(std::vector<int64_t> shape) const {
    if (multi_ && !shape.empty()) return {depth_};
    shape.push_back(depth_);
    return shape;
  }
  std::string in_, out_;
  int64_t depth_;
  bool multi_;
  float on_, off_;
};

class Randu : public Op {
 public:
  explicit Randu(const Arguments& a) : key_(a.text("key")) {}
  Spec propagate(Spec spec) const override {
    spec[key_] = FieldSpec::array(device::DType::f32, {});
    return spec;
  }
  void apply(Sample& sample, const OpContext& context) const override {
    Array out(device::DType::f32, {});
    *out.f32() = Draws(context.stream).uniform();
    sample[key_] = std::move(out);
  }

 private:
  std::string key_;
};

// Normalises pixels: (pixel - mean) / deviation per channel, in levels of 255.
struct Levels {
  std::array<float, 3> mean, deviation;
};

Levels levels(std::array<double, 3> mean, std::array<double, 3> deviation) {
  Levels out{};
  for (size_t c = 0; c < 3; ++c) {
    out.mean[c] = float(mean[c] * 255);
    out.deviation[c] = float(deviation[c] * 255);
  }
  return out;
}

class Normalise : public Op {
 public:
  Normalise(const Arguments& a, Levels levels) : keys_(keys_of(a)), levels_(levels) {}

  Spec propagate(Spec spec) const override {
    FieldSpec in = image_of(spec, keys_.in);
    if (in.shape[2] != 3)
      base::fail(base::Exit::config, "field '{}' is {}, not RGB", keys_.in, text_of(in));
    spec[keys_.out] = FieldSpec::array(device::DType::f32, in.shape);
    return spec;
  }

  std::optional<ByteScale> byte_scale(const Spec&, const std::string& field) const override {
    if (keys_.in != field || keys_.out != field) return {};
    return ByteScale{0, 1, 0, 1, levels_.mean, levels_.deviation};
  }

  void apply(Sample& sample, const OpContext&) const override {
    const Array& in = array_of(sample, keys_.in);
    check_image(in);
    Array out(device::DType::f32, in.shape);
    float* to = out.f32();
    for (int64_t i = 0; i < in.count(); ++i) {
      float pixel = in.type == device::DType::u8 ? float(in.u8()[i]) : in.f32()[i];
      to[i] = (pixel - levels_.mean[size_t(i % 3)]) / levels_.deviation[size_t(i % 3)];
    }
    sample[keys_.out] = std::move(out);
  }

 private:
  Keys keys_;
  Levels levels_;
};

}  // namespace

OpRow onehot_row() {
  using Type = Parameter::Type;
  return {"onehot",
          "whole numbers -> f32 vectors",
          {{"depth", Type::integer, "", "length of a vector"},
           {"key", Type::text, "\"labels\"", "field to read"},
           {"key_result", Type::text, "None", "field to write; default: the same"},
           {"multi", Type::flag, "True", "several labels become one vector that has them all"},
           {"on", Type::number, "1.0", "value at the label"},
           {"off", Type::number, "0.0", "value elsewhere"}},
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Onehot>(a);
          }};
}

OpRow randu_row() {
  return {"randu",
          "a random number in [0, 1)",
          {{"key", Parameter::Type::text, "", "field to write"}},
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Randu>(a);
          }};
}

OpRow vgg_value_range_row() {
  return {
      "vgg_value_range", "pixels 0..255 -> f32, ImageNet mean and deviation",
      key_parameters("image", "image"),
      [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
        return std::make_unique<Normalise>(a, levels({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}));
      }};
}

OpRow clip_value_range_row() {
  return {"clip_value_range", "pixels 0..255 -> f32, CLIP's mean and deviation",
          key_parameters("image", "image"),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Normalise>(a, levels({0.48145466, 0.4578275, 0.40821073},
                                                         {0.26862954, 0.26130258, 0.27577711}));
          }};
}

}  // namespace data
