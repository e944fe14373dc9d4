// SPDX-License-Identifier: Apache-2.0
// central_crop, random_crop, inception_crop: select pixels. Random ops draw by global
// position, so the crops differ in every epoch and do not depend on ranks or threads.
#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "data/images/inception_box.hpp"
#include "data/ops/image_op.hpp"

namespace data {
namespace {

// Crops to a fixed size, in the middle or at a random place.
class FixedCrop : public Op {
 public:
  FixedCrop(const Arguments& a, bool random)
      : keys_(keys_of(a)),
        size_(a.has("crop_size") ? std::optional(a.size("crop_size")) : std::nullopt),
        random_(random) {}

  Spec propagate(Spec spec) const override {
    FieldSpec in = image_of(spec, keys_.in);
    std::vector<int64_t> out{-1, -1, in.shape[2]};
    if (size_) out = {size_->first, size_->second, in.shape[2]};
    if (!size_ && in.shape[0] > 0 && in.shape[1] > 0)
      out[0] = out[1] = std::min(in.shape[0], in.shape[1]);
    for (size_t i = 0; i < 2; ++i)
      if (in.shape[i] > 0 && out[i] > in.shape[i])
        base::fail(base::Exit::config, "a crop of {} from an image {}", text_of(out),
                   text_of(in.shape));
    spec[keys_.out] = FieldSpec::array(in.type, out);
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Array& in = array_of(sample, keys_.in);
    check_image(in);
    int64_t height = size_ ? size_->first : std::min(in.shape[0], in.shape[1]),
            width = size_ ? size_->second : height;
    int64_t spare_y = in.shape[0] - height, spare_x = in.shape[1] - width;
    if (spare_y < 0 || spare_x < 0)
      base::fail(base::Exit::data, "an image {} is smaller than the crop [{},{}]: resize it before",
                 text_of(in.shape), height, width);
    Draws draw(context.stream);
    int64_t y = random_ ? draw.below(spare_y + 1) : spare_y / 2;
    int64_t x = random_ ? draw.below(spare_x + 1) : spare_x / 2;
    sample[keys_.out] = crop(in, y, x, height, width);
  }

 private:
  Keys keys_;
  std::optional<std::pair<int64_t, int64_t>> size_;  // none: the largest square
  bool random_;
};

class InceptionCrop : public Op {
 public:
  explicit InceptionCrop(const Arguments& a)
      : keys_(keys_of(a)),
        size_(a.has("size") ? std::optional(a.size("size")) : std::nullopt),
        smallest_(float(a.number("area_min") / 100)),
        largest_(float(a.number("area_max") / 100)),
        how_(resize_how(a)) {
    if (!(smallest_ > 0 && largest_ <= 1 && smallest_ <= largest_))
      a.fail("area_min", "areas are percent of the image: 0 < area_min <= area_max <= 100");
  }

  Spec propagate(Spec spec) const override {
    FieldSpec in = image_of(spec, keys_.in);
    spec[keys_.out] = FieldSpec::array(in.type, {size_ ? size_->first : int64_t{-1},
                                                 size_ ? size_->second : int64_t{-1}, in.shape[2]});
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Array& in = array_of(sample, keys_.in);
    check_image(in);
    Draws draw(context.stream);
    const pillow::Box box = inception_box(in.shape[0], in.shape[1], smallest_, largest_, draw);
    Array out = crop(in, box.y, box.x, box.height, box.width);
    if (size_) out = resize(out, size_->first, size_->second, how_.method, how_.antialias);
    sample[keys_.out] = std::move(out);
  }

 private:
  Keys keys_;
  std::optional<std::pair<int64_t, int64_t>> size_;
  float smallest_, largest_;
  ResizeHow how_;
};

std::vector<Parameter> on_image(std::vector<Parameter> own) {
  for (Parameter& p : key_parameters("image", "image")) own.push_back(std::move(p));
  return own;
}

}  // namespace

OpRow central_crop_row() {
  return {"central_crop", "the middle of an image",
          on_image({{"crop_size", Parameter::Type::size, "None",
                     "64, or [height, width]; none: the largest square"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<FixedCrop>(a, false);
          }};
}

OpRow random_crop_row() {
  return {"random_crop", "a crop at a random place",
          on_image({{"crop_size", Parameter::Type::size, "", "64, or [height, width]"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<FixedCrop>(a, true);
          }};
}

OpRow inception_crop_row() {
  std::vector<Parameter> own{
      {"size", Parameter::Type::size, "None", "resize the crop to this; none: leave it"},
      {"area_min", Parameter::Type::number, "5", "smallest area in percent of the image"},
      {"area_max", Parameter::Type::number, "100", "largest area in percent of the image"}};
  for (Parameter& p : resize_parameters("bilinear")) own.push_back(std::move(p));
  return {"inception_crop", "a crop of random place, area and aspect ratio (3/4 to 1.33)",
          on_image(std::move(own)),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<InceptionCrop>(a);
          }};
}

}  // namespace data
