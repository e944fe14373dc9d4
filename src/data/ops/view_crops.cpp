// SPDX-License-Identifier: Apache-2.0
// copies, random_resized_crop, multi_crop, resize_shorter, center_crop: make views of an image, and
// bring them to one size as torchvision does with Pillow (ssl.md 6.1, 6.3).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "data/images/decode.hpp"
#include "data/images/random_box.hpp"
#include "data/ops/views.hpp"

namespace data {
namespace {

using pillow::Box;
using pillow::CropLimits;

constexpr int64_t kMostViews = 256;

// Crops `from` at random into `to`.
void crop_at_random(const pillow::Image& from, const CropLimits& limits, const Draws& draws,
                    const pillow::Image& to) {
  pillow::resize(from, random_box(from.height, from.width, limits, CropDraws{draws}), to);
}

Parameter scale_parameter() {
  return {"scale", Parameter::Type::pairs, "[0.08, 1]",
          "smallest and largest part of the area, or a list with one pair per size"};
}
Parameter ratio_parameter() {
  return {"ratio", Parameter::Type::pairs, "[0.75, 1.3333333333333333]",
          "smallest and largest width / height"};
}

// Returns the limits of crops, one for each pair of `scale`.
std::vector<CropLimits> crop_limits(const Arguments& a) {
  const std::vector<std::pair<double, double>> ratio = a.pairs("ratio");
  if (ratio.size() != 1 || !(ratio[0].first > 0 && ratio[0].first <= ratio[0].second))
    a.fail("ratio", "ratio is [smallest, largest] width / height, with 0 < smallest <= largest");
  std::vector<CropLimits> all;
  for (const auto& [smallest, largest] : a.pairs("scale")) {
    if (!(smallest > 0 && smallest <= largest && largest <= 1))
      a.fail("scale", fmt::format("scale holds [{}, {}]; parts of the area are 0 < smallest <= "
                                  "largest <= 1",
                                  smallest, largest));
    all.push_back({smallest, largest, ratio[0].first, ratio[0].second});
  }
  return all;
}

class Copies : public Op {
 public:
  explicit Copies(const Arguments& a) : keys_(keys_of(a)), count_(a.integer("count")) {
    if (count_ < 1 || count_ > kMostViews)
      a.fail("count", fmt::format("{} copies; give 1 to {}", count_, kMostViews));
  }

  Spec propagate(Spec spec) const override {
    FieldSpec in = image_of(spec, keys_.in);
    in.shape.insert(in.shape.begin(), count_);
    spec[keys_.out] = in;
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Array& in = array_of(sample, keys_.in);
    check_image(in);
    std::vector<int64_t> shape = in.shape;
    shape.insert(shape.begin(), count_);
    Array out = array_for(context, keys_.out, in.type, std::move(shape), in);
    for (int64_t i = 0; i < count_; ++i)
      std::memcpy(out.bytes.data() + size_t(i) * in.bytes.size(), in.bytes.data(), in.bytes.size());
    sample[keys_.out] = std::move(out);
  }

 private:
  Keys keys_;
  int64_t count_;
};

// Crops an image, or every view of one size, at random.
class RandomResizedCrop : public Op {
 public:
  explicit RandomResizedCrop(const Arguments& a)
      : keys_(keys_of(a)), size_(a.size("size")), limits_(crop_limits(a).front()) {
    if (a.pairs("scale").size() != 1)
      a.fail("scale", "only multi_crop takes several pairs; give one");
  }

  Spec propagate(Spec spec) const override {
    for (const std::string& field : view_fields(spec, keys_.in)) {
      FieldSpec in = rgb_bytes_of(spec, field);
      in.shape = sized(in.shape);
      spec[written_field(keys_, field)] = in;
    }
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    int64_t first = 0;
    for (const std::string& field : view_fields(sample, keys_.in)) {
      const Array& in = array_of(sample, field);
      check_rgb_bytes(in, field);
      const bool views = in.shape.size() == 4;
      const std::string written = written_field(keys_, field);
      Array out = array_for(context, written, device::DType::u8, sized(in.shape), in);
      for (int64_t i = 0; i < (views ? in.shape[0] : 1); ++i) {
        const int64_t view = views ? i : kNoView;
        crop_at_random(view_of(in, view), limits_, draws_of(context, views ? first + i : kNoView),
                       view_of(out, view));
      }
      if (views) first += in.shape[0];
      sample[written] = std::move(out);
    }
  }

 private:
  std::vector<int64_t> sized(std::vector<int64_t> shape) const {
    shape[shape.size() - 3] = size_.first;
    shape[shape.size() - 2] = size_.second;
    return shape;
  }
  Keys keys_;
  std::pair<int64_t, int64_t> size_;  // height, width
  CropLimits limits_;
};

// Makes random crops of several sizes, each one from the whole image. Neighbouring sizes that are
// equal share a field, because their views pass the trunk together (ssl.md 2).
class MultiCrop : public Op {
 public:
  explicit MultiCrop(const Arguments& a) : keys_(keys_of(a)) {
    const std::vector<float> counts = a.numbers("counts"), sizes = a.numbers("sizes");
    std::vector<CropLimits> limits = crop_limits(a);
    if (counts.size() != sizes.size())
      a.fail("counts", fmt::format("{} numbers of crops for {} sizes; give one for each",
                                   counts.size(), sizes.size()));
    if (limits.size() == 1) limits.resize(sizes.size(), limits.front());
    if (limits.size() != sizes.size())
      a.fail("scale", fmt::format("{} pairs for {} sizes; give one, or one for each", limits.size(),
                                  sizes.size()));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t count = whole(a, "counts", counts[i], kMostViews),
                    size = whole(a, "sizes", sizes[i], 1 << 16);
      if (groups_.empty() || groups_.back().size != size) groups_.push_back({size, {}});
      groups_.back().views.insert(groups_.back().views.end(), size_t(count), limits[i]);
    }
  }

  Spec propagate(Spec spec) const override {
    const FieldSpec in = rgb_bytes_of(spec, keys_.in);
    if (in.shape.size() != 3)
      base::fail(base::Exit::config, "field '{}' is {}; multi_crop makes the views itself",
                 keys_.in, text_of(in));
    for (size_t g = 0; g < groups_.size(); ++g) {
      const std::string field = field_of_group(g);
      if (g > 0 && spec.contains(field))
        base::fail(base::Exit::config, "there is a field '{}' already; drop it, or set outkey",
                   field);
      spec[field] = FieldSpec::array(in.type, shape_of_group(g));
    }
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    check_rgb_bytes(array_of(sample, keys_.in), keys_.in);
    // The first group may take the place of the image in the sample.
    Array image = std::move(array_of(sample, keys_.in));
    int64_t view = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const std::string field = field_of_group(g);
      Array out = array_for(context, field, device::DType::u8, shape_of_group(g), image);
      for (size_t i = 0; i < groups_[g].views.size(); ++i, ++view)
        crop_at_random(view_of(image, kNoView), groups_[g].views[i], draws_of(context, view),
                       view_of(out, int64_t(i)));
      sample[field] = std::move(out);
    }
    if (keys_.in != keys_.out) sample[keys_.in] = std::move(image);
  }

 private:
  struct Group {
    int64_t size;
    std::vector<CropLimits> views;
  };
  static int64_t whole(const Arguments& a, const char* name, float value, int64_t most) {
    if (value != std::floor(value) || value < 1 || value > float(most))
      a.fail(name,
             fmt::format("{} holds {}; it may hold whole numbers from 1 to {}", name, value, most));
    return int64_t(value);
  }
  std::string field_of_group(size_t g) const { return keys_.out + (g ? std::to_string(g) : ""); }
  std::vector<int64_t> shape_of_group(size_t g) const {
    return {int64_t(groups_[g].views.size()), groups_[g].size, groups_[g].size, 3};
  }
  Keys keys_;
  std::vector<Group> groups_;
};

// Resizes an image, or cuts out its middle.
class ExactSize : public Op {
 public:
  explicit ExactSize(const Arguments& a) : keys_(keys_of(a)) {}

  Spec propagate(Spec spec) const override {
    FieldSpec in = rgb_bytes_of(spec, keys_.in);
    if (in.shape.size() != 3)
      base::fail(base::Exit::config, "field '{}' is {}; this op works on images without views",
                 keys_.in, text_of(in));
    const bool known = in.shape[0] > 0 && in.shape[1] > 0;
    const auto [height, width] =
        target(known ? in.shape[0] : -1, known ? in.shape[1] : -1, base::Exit::config);
    spec[keys_.out] = FieldSpec::array(in.type, {height, width, 3});
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Array& in = array_of(sample, keys_.in);
    check_rgb_bytes(in, keys_.in);
    const auto [height, width] = target(in.shape[0], in.shape[1], base::Exit::data);
    check_image_size("resized", width, height);
    if (height == in.shape[0] && width == in.shape[1] && keys_.in == keys_.out) return;
    Array out = array_for(context, keys_.out, device::DType::u8, {height, width, 3}, in);
    make(view_of(in, kNoView), view_of(out, kNoView));
    sample[keys_.out] = std::move(out);
  }

 protected:
  // Returns height and width of the result; -1 if they are not known. Throws an error with this
  // code if the image cannot have that size.
  virtual std::pair<int64_t, int64_t> target(int64_t height, int64_t width,
                                             base::Exit code) const = 0;
  virtual void make(const pillow::Image& in, const pillow::Image& out) const = 0;

 private:
  Keys keys_;
};

class ResizeShorter : public ExactSize {
 public:
  explicit ResizeShorter(const Arguments& a) : ExactSize(a), size_(a.integer("size")) {
    if (size_ < 1 || size_ > (1 << 16))
      a.fail("size", fmt::format("a side of {} pixels; it may have 1 to {}", size_, 1 << 16));
  }

 protected:
  std::pair<int64_t, int64_t> target(int64_t height, int64_t width, base::Exit) const override {
    if (height < 0) return {-1, -1};
    const int64_t shorter = std::min(height, width), longer = std::max(height, width);
    const int64_t other = int64_t(double(size_ * longer) / double(shorter));
    return height <= width ? std::pair(size_, other) : std::pair(other, size_);
  }
  void make(const pillow::Image& in, const pillow::Image& out) const override {
    pillow::resize(in, {0, 0, in.height, in.width}, out);
  }

 private:
  int64_t size_;
};

class CenterCrop : public ExactSize {
 public:
  explicit CenterCrop(const Arguments& a) : ExactSize(a), size_(a.size("size")) {}

 protected:
  std::pair<int64_t, int64_t> target(int64_t height, int64_t width,
                                     base::Exit code) const override {
    if (height >= 0 && (height < size_.first || width < size_.second))
      base::fail(code, "an image [{},{},3] is smaller than the crop [{},{}]: resize it before",
                 height, width, size_.first, size_.second);
    return size_;
  }
  void make(const pillow::Image& in, const pillow::Image& out) const override {
    const auto half = [](int64_t spare) { return int64_t(std::nearbyint(double(spare) / 2)); };
    pillow::resize(
        in, {half(in.height - out.height), half(in.width - out.width), out.height, out.width}, out);
  }

 private:
  std::pair<int64_t, int64_t> size_;
};

}  // namespace

OpRow copies_row() {
  return {"copies", "views that are copies of one image: [height, width, 3] -> [count, ...]",
          on_views({{"count", Parameter::Type::integer, "2", "number of views"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Copies>(a);
          }};
}

OpRow random_resized_crop_row() {
  return {"random_resized_crop",
          "a crop of random place, area and ratio, resized as torchvision and Pillow do",
          on_views({{"size", Parameter::Type::size, "", "96, or [height, width]"},
                    scale_parameter(),
                    ratio_parameter()}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<RandomResizedCrop>(a);
          }};
}

OpRow multi_crop_row() {
  return {"multi_crop",
          "views that are random crops: image [2, 224, 224, 3], image1 [6, 96, 96, 3], ...",
          on_views({{"counts", Parameter::Type::numbers, "", "crops of each size: [2, 6]"},
                    {"sizes", Parameter::Type::numbers, "", "[224, 96]"},
                    scale_parameter(),
                    ratio_parameter()}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<MultiCrop>(a);
          }};
}

OpRow resize_shorter_row() {
  return {"resize_shorter", "the shorter side becomes size, as torchvision and Pillow do",
          on_views({{"size", Parameter::Type::integer, "", "pixels"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<ResizeShorter>(a);
          }};
}

OpRow center_crop_row() {
  return {"center_crop", "the middle of an image, with torchvision's rounding of the place",
          on_views({{"size", Parameter::Type::size, "", "64, or [height, width]"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<CenterCrop>(a);
          }};
}

}  // namespace data
