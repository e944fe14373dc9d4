// SPDX-License-Identifier: Apache-2.0
// rotate: turns an image by one of several angles. The angle's number is a label that needs no
// annotation.
#include "base/error.hpp"
#include "base/fused.hpp"
#include "data/ops/views.hpp"

namespace data {
namespace {

constexpr int64_t kMostAngles = 360;

class Rotate : public Op {
 public:
  explicit Rotate(const Arguments& a)
      : keys_(keys_of(a)), label_(a.text("label")), angles_(a.integer("angles")) {
    if (angles_ < 2 || angles_ > kMostAngles)
      a.fail("angles", fmt::format("{} angles; give 2 to {}", angles_, kMostAngles));
  }

  Spec propagate(Spec spec) const override {
    const FieldSpec in = rgb_bytes_of(spec, keys_.in);
    if (in.shape.size() != 3)
      base::fail(base::Exit::config,
                 "field '{}' is {}; rotate writes one label per image, so put it before the op "
                 "that makes views",
                 keys_.in, text_of(in));
    spec[keys_.out] = in;
    spec[label_] = FieldSpec::array(device::DType::i32, {}, angles_);
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Array& in = array_of(sample, keys_.in);
    check_rgb_bytes(in, keys_.in);
    Draws draw(context.stream);
    Array label(device::DType::i32, {});
    *label.i32() = int32_t(draw.below(angles_));
    Array out = array_for(context, keys_.out, device::DType::u8, in.shape, in);
    pillow::rotate(view_of(in, kNoView), degrees(*label.i32()), view_of(out, kNoView));
    sample[keys_.out] = std::move(out);
    sample[label_] = std::move(label);
  }

  bool touches(const std::string& field) const override {
    return field == keys_.in || field == keys_.out || field == label_;
  }

 private:
  // Angles are equally spaced. The published code computes them in single precision, from the
  // nearer of 0 and 360 degrees.
  double degrees(int32_t number) const {
    const float step = 360.0f / float(angles_);
    const int64_t i = number;
    return double(i < (angles_ + 1) / 2 ? step * float(i)
                                        : base::fused(-step, float(angles_ - i), 360.0f));
  }
  Keys keys_;
  std::string label_;
  int64_t angles_;
};

}  // namespace

OpRow rotate_row() {
  return {"rotate",
          "turned counter-clockwise by one of equally spaced angles, as Pillow does; writes its "
          "number",
          on_views({{"angles", Parameter::Type::integer, "4", "number of angles, from 0 degrees"},
                    {"label", Parameter::Type::text, "\"rotation\"",
                     "field to write: the angle's number, i32"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Rotate>(a);
          }};
}

}  // namespace data
