// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "base/error.hpp"
#include "data/ops/views.hpp"

// Products and sums must not be fused, as in value_range.cpp.

namespace data {
namespace {

// Bytes become (byte / 255 - mean) / std of their channel, each operation rounded to float, as
// torchvision's ToTensor and Normalize do.
class NormalizeChannels : public Op {
 public:
  explicit NormalizeChannels(const Arguments& a)
      : keys_(keys_of(a)), mean_(three(a, "mean")), deviation_(three(a, "std")) {
    for (float d : deviation_)
      if (!(d > 0)) a.fail("std", fmt::format("std holds {}; it must be larger than 0", d));
    for (size_t c = 0; c < 3; ++c)
      for (int byte = 0; byte < 256; ++byte)
        table_[c][size_t(byte)] = (float(byte) / 255.0f - mean_[c]) / deviation_[c];
  }

  Spec propagate(Spec spec) const override {
    for (const std::string& field : view_fields(spec, keys_.in)) {
      const FieldSpec in = rgb_bytes_of(spec, field);
      spec[written_field(keys_, field)] = FieldSpec::array(device::DType::f32, in.shape);
    }
    return spec;
  }

  std::optional<ByteScale> byte_scale(const Spec& before, const std::string& field) const override {
    if (keys_.in != keys_.out || !is_view_field(before, keys_.in, field)) return {};
    return ByteScale{0, 255, 0, 1, mean_, deviation_};
  }

  void apply(Sample& sample, const OpContext& context) const override {
    for (const std::string& field : view_fields(sample, keys_.in)) {
      const Array& in = array_of(sample, field);
      check_rgb_bytes(in, field);
      const std::string written = written_field(keys_, field);
      Array out = array_for(context, written, device::DType::f32, in.shape, in);
      const uint8_t* from = in.u8();
      float* to = out.f32();
      for (const uint8_t* end = from + in.count(); from != end; from += 3, to += 3)
        for (size_t c = 0; c < 3; ++c) to[c] = table_[c][from[c]];
      sample[written] = std::move(out);
    }
  }

 private:
  static std::array<float, 3> three(const Arguments& a, const char* name) {
    const std::vector<float> all = a.numbers(name);
    if (all.size() == 1) return {all[0], all[0], all[0]};
    if (all.size() != 3)
      a.fail(name, fmt::format("{} has {} numbers; give one, or one for each of the three channels",
                               name, all.size()));
    return {all[0], all[1], all[2]};
  }
  Keys keys_;
  std::array<float, 3> mean_, deviation_;
  std::array<std::array<float, 256>, 3> table_;
};

}  // namespace

OpRow normalize_row() {
  using Type = Parameter::Type;
  return {"normalize",
          "bytes -> f32: (byte / 255 - mean) / std of each channel, as torchvision rounds",
          on_views({{"mean", Type::numbers, "[0.485, 0.456, 0.406]", "of red, green, blue"},
                    {"std", Type::numbers, "[0.229, 0.224, 0.225]", "of red, green, blue"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<NormalizeChannels>(a);
          }};
}

}  // namespace data
