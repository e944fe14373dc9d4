// SPDX-License-Identifier: Apache-2.0
// resize, resize_small, resize_long. Like the published ops, they keep u8 as u8: clipped, then
// truncated.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "data/hint.hpp"
#include "data/ops/image_op.hpp"

namespace data {

const FieldSpec& image_of(const Spec& spec, const std::string& key) {
  const FieldSpec& in = field_of(spec, key);
  bool pixels = in.kind == FieldSpec::Kind::array &&
                (in.type == device::DType::u8 || in.type == device::DType::f32);
  if (!pixels || in.shape.size() != 3)
    base::fail(base::Exit::config, "field '{}' is {}, not an image{}", key, text_of(in),
               in.kind == FieldSpec::Kind::bytes ? "; put decode before it" : "");
  return in;
}

std::vector<Parameter> resize_parameters(const std::string& method) {
  return {{"method", Parameter::Type::text, fmt::format("\"{}\"", method),
           list_of(resize_method_names())},
          {"antialias", Parameter::Type::flag, "False", "widen the kernel when shrinking"}};
}

ResizeHow resize_how(const Arguments& arguments) {
  std::vector<std::string> names = resize_method_names();
  std::string method = arguments.text("method");
  if (std::find(names.begin(), names.end(), method) == names.end())
    arguments.fail("method", fmt::format("method is \"{}\"{}; it may be {}", method,
                                         nearest_hint(method, names), list_of(names)));
  return {resize_method_named(method), arguments.flag("antialias")};
}

namespace {

class Resize : public Op {
 public:
  explicit Resize(const Arguments& a)
      : keys_(keys_of(a)), size_(a.size("size")), how_(resize_how(a)) {}

  Spec propagate(Spec spec) const override {
    FieldSpec in = image_of(spec, keys_.in);
    spec[keys_.out] = FieldSpec::array(in.type, {size_.first, size_.second, in.shape[2]});
    return spec;
  }

  void apply(Sample& sample, const OpContext&) const override {
    const Array& in = array_of(sample, keys_.in);
    bool same = keys_.in == keys_.out && in.shape.size() == 3 && in.shape[0] == size_.first &&
                in.shape[1] == size_.second;
    if (!same)
      sample[keys_.out] = resize(in, size_.first, size_.second, how_.method, how_.antialias);
  }

 private:
  Keys keys_;
  std::pair<int64_t, int64_t> size_;  // height, width
  ResizeHow how_;
};

// Resizes one side to `size`. The other side becomes its length times (float)(size / chosen side),
// rounded half to even.
class ResizeSide : public Op {
 public:
  ResizeSide(const Arguments& a, std::string_view argument, bool longer)
      : keys_(keys_of(a)), size_(a.integer(argument)), longer_(longer), how_(resize_how(a)) {
    if (size_ < 1 || size_ > (1 << 16))
      a.fail(argument, fmt::format("a side of {} pixels; give 1 to 65536", size_));
  }

  Spec propagate(Spec spec) const override {
    FieldSpec in = image_of(spec, keys_.in);
    bool known = in.shape[0] > 0 && in.shape[1] > 0;
    auto [height, width] = known ? target(in.shape) : std::pair<int64_t, int64_t>(-1, -1);
    spec[keys_.out] = FieldSpec::array(in.type, {height, width, in.shape[2]});
    return spec;
  }

  void apply(Sample& sample, const OpContext&) const override {
    const Array& in = array_of(sample, keys_.in);
    check_image(in);
    auto [height, width] = target(in.shape);
    sample[keys_.out] = resize(in, height, width, how_.method, how_.antialias);
  }

 private:
  std::pair<int64_t, int64_t> target(const std::vector<int64_t>& shape) const {
    int64_t side = longer_ ? std::max(shape[0], shape[1]) : std::min(shape[0], shape[1]);
    float factor = float(size_) / float(side);
    return {int64_t(std::nearbyint(float(shape[0]) * factor)),
            int64_t(std::nearbyint(float(shape[1]) * factor))};
  }

  Keys keys_;
  int64_t size_;
  bool longer_;
  ResizeHow how_;
};

std::vector<Parameter> with_resizing(Parameter size, const std::string& method) {
  std::vector<Parameter> all{std::move(size)};
  for (Parameter& p : resize_parameters(method)) all.push_back(std::move(p));
  for (Parameter& p : key_parameters("image", "image")) all.push_back(std::move(p));
  return all;
}

}  // namespace

OpRow resize_row() {
  return {"resize", "to a fixed size; the aspect ratio is not kept",
          with_resizing({"size", Parameter::Type::size, "", "64, or [height, width]"}, "bilinear"),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Resize>(a);
          }};
}

OpRow resize_small_row() {
  return {"resize_small", "the smaller side becomes smaller_size, the aspect ratio is kept",
          with_resizing({"smaller_size", Parameter::Type::integer, "", "pixels"}, "area"),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<ResizeSide>(a, "smaller_size", false);
          }};
}

OpRow resize_long_row() {
  return {"resize_long", "the longer side becomes longer_size, the aspect ratio is kept",
          with_resizing({"longer_size", Parameter::Type::integer, "", "pixels"}, "area"),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<ResizeSide>(a, "longer_size", true);
          }};
}

}  // namespace data
