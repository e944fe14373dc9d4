// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.hpp"
#include "data/ops/views.hpp"

// Products and sums must not be fused, because published code rounds each.

namespace data {
namespace {

template <class T>
void scale(const T* in, float* out, int64_t count, float low, float width, float to_low,
           float to_width) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_low + (float(in[i]) - low) / width * to_width;
}

template <class T>
void scale_channels(const T* in, float* out, int64_t pixels, int64_t channels, const float* low,
                    const float* width, float to_low, float to_width) {
  for (int64_t i = 0; i < pixels; ++i)
    for (int64_t c = 0; c < channels; ++c)
      out[i * channels + c] = to_low + (float(in[i * channels + c]) - low[c]) / width[c] * to_width;
}

class ValueRange : public Op {
 public:
  explicit ValueRange(const Arguments& a)
      : keys_(keys_of(a)),
        low_(a.numbers("in_min")),
        to_low_(float(a.number("vmin"))),
        to_high_(float(a.number("vmax"))),
        to_width_(float(a.number("vmax") - a.number("vmin"))),
        clip_(a.flag("clip_values")) {
    std::vector<float> high = a.numbers("in_max");
    size_t channels = std::max(low_.size(), high.size());
    for (auto* list : {&low_, &high}) {
      if (list->size() == 1) list->resize(channels, list->front());
      if (list->size() != channels) a.fail("in_max", "in_min and in_max have different lengths");
    }
    for (size_t c = 0; c < channels; ++c) {
      if (high[c] == low_[c]) a.fail("in_max", "in_min and in_max are equal");
      width_.push_back(high[c] - low_[c]);
    }
  }

  Spec propagate(Spec spec) const override {
    for (const std::string& field : view_fields(spec, keys_.in)) {
      const FieldSpec in = field_of(spec, field);
      if (in.kind != FieldSpec::Kind::array ||
          (in.type != device::DType::u8 && in.type != device::DType::f32))
        base::fail(base::Exit::config, "field '{}' is {}, not pixels{}", field, text_of(in),
                   in.kind == FieldSpec::Kind::bytes ? "; put decode before it" : "");
      if (width_.size() > 1 &&
          (in.shape.empty() || (in.shape.back() >= 0 && in.shape.back() != int64_t(width_.size()))))
        base::fail(base::Exit::config,
                   "{} values of in_min or in_max do not match the channels of {}; give one, or "
                   "one per channel",
                   width_.size(), text_of(in));
      spec[written_field(keys_, field)] = FieldSpec::array(device::DType::f32, in.shape);
    }
    return spec;
  }

  std::optional<ByteScale> byte_scale(const Spec& before, const std::string& field) const override {
    if (keys_.in != keys_.out || width_.size() != 1 || clip_ ||
        !is_view_field(before, keys_.in, field))
      return {};
    return ByteScale{low_[0], width_[0], to_low_, to_width_};
  }

  void apply(Sample& sample, const OpContext& context) const override {
    for (const std::string& field : view_fields(sample, keys_.in)) {
      const Array& in = array_of(sample, field);
      const std::string written = written_field(keys_, field);
      Array out = array_for(context, written, device::DType::f32, in.shape, in);
      if (in.type == device::DType::u8)
        convert(in.u8(), out);
      else
        convert(in.f32(), out);
      if (clip_)
        for (float* p = out.f32(); p != out.f32() + out.count(); ++p)
          *p = std::min(std::max(*p, to_low_), to_high_);
      sample[written] = std::move(out);
    }
  }

 private:
  template <class T>
  void convert(const T* in, Array& out) const {
    int64_t channels = int64_t(width_.size());
    if (channels == 1)
      scale(in, out.f32(), out.count(), low_[0], width_[0], to_low_, to_width_);
    else
      scale_channels(in, out.f32(), out.count() / channels, channels, low_.data(), width_.data(),
                     to_low_, to_width_);
  }

  Keys keys_;
  std::vector<float> low_, width_;  // one, or one per channel
  float to_low_, to_high_, to_width_;
  bool clip_;
};

}  // namespace

OpRow value_range_row() {
  using Type = Parameter::Type;
  std::vector<Parameter> parameters{
      {"vmin", Type::number, "-1", "in_min becomes this"},
      {"vmax", Type::number, "1", "in_max becomes this"},
      {"in_min", Type::numbers, "0", "one number or one per channel"},
      {"in_max", Type::numbers, "255", "one number or one per channel"},
      {"clip_values", Type::flag, "False", "clip results to [vmin, vmax]"}};
  for (Parameter& p : key_parameters("image", "image")) parameters.push_back(std::move(p));
  return {"value_range", "pixels -> f32, [in_min, in_max] becomes [vmin, vmax]",
          std::move(parameters),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<ValueRange>(a);
          }};
}

}  // namespace data
