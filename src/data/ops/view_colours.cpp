// SPDX-License-Identifier: Apache-2.0
// color_jitter, color_distortion, grayscale, gaussian_blur, solarize, photometric: random changes
// of the views' pixels, with the same bytes as Pillow (ssl.md 6.1 to 6.3).
#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "data/ops/views.hpp"

// Float operations that form factors must not be fused.

namespace data {
namespace {

using pillow::Image;
using pillow::Planes;

float between(float low, float high, Draws& draw) { return low + draw.uniform() * (high - low); }

// Brightness, contrast, saturation and hue, each by a random amount and all in a random order. An
// amount of 0 switches a change off.
class Jitter {
 public:
  Jitter(float brightness_range, float contrast_range, float saturation_range, float hue_range)
      : ranges_{brightness_range, contrast_range, saturation_range, hue_range} {}

  void change(Planes& image, Draws& draw) const {
    std::array<int, 4> order{0, 1, 2, 3};
    for (int64_t i = 3; i > 0; --i) std::swap(order[size_t(i)], order[size_t(draw.below(i + 1))]);
    std::array<float, 4> amount{};
    for (size_t i = 0; i < 4; ++i) {
      const float range = ranges_[i], middle = i == 3 ? 0.0f : 1.0f;
      const float low = i == 3 ? -range : std::max(0.0f, middle - range);
      if (range > 0) amount[i] = between(low, middle + range, draw);
    }
    for (int i : order) {
      if (ranges_[size_t(i)] == 0) continue;
      if (i == 0) pillow::brightness(image, amount[0]);
      if (i == 1) pillow::contrast(image, amount[1]);
      if (i == 2) pillow::saturation(image, amount[2]);
      if (i == 3) pillow::hue(image, double(amount[3]));
    }
  }

 private:
  std::array<float, 4> ranges_;
};

// Returns an argument that may not be negative, nor larger than `most`.
float range_of(const Arguments& a, const char* name, double most) {
  const double value = a.number(name);
  if (!(value >= 0 && value <= most))
    a.fail(name, fmt::format("{} is {}; it may be 0 to {}", name, value, most));
  return float(value);
}

constexpr double kMostFactor = 100, kMostTurn = 0.5;

class ColorJitter : public RandomViewOp {
 public:
  explicit ColorJitter(const Arguments& a)
      : RandomViewOp(a),
        jitter_(range_of(a, "brightness", kMostFactor), range_of(a, "contrast", kMostFactor),
                range_of(a, "saturation", kMostFactor), range_of(a, "hue", kMostTurn)) {}

 protected:
  void change(const Image& image, Draws& draw) const override {
    Planes planes(image);
    jitter_.change(planes, draw);
    planes.store(image);
  }

 private:
  Jitter jitter_;
};

// Jitter with amounts 0.8, 0.8, 0.8, 0.2 times the strength, then grey.
class ColorDistortion : public ViewOp {
 public:
  explicit ColorDistortion(const Arguments& a)
      : ViewOp(a), jitter_(jitter_of(a)), p_(a, "p"), grey_(a, "p_gray") {}

 protected:
  void check_views(int64_t views) const override {
    p_.check_views(views);
    grey_.check_views(views);
  }
  void visit(const Image& image, int64_t view, Draws& draw) const override {
    const bool jittered = p_.draw(view, draw), grey = grey_.draw(view, draw);
    if (!jittered && !grey) return;
    Planes planes(image);
    if (jittered) jitter_.change(planes, draw);
    if (grey) pillow::grayscale(planes);
    planes.store(image);
  }

 private:
  static Jitter jitter_of(const Arguments& a) {
    constexpr float kFactor = 0.8f, kTurn = 0.2f;
    const float strength = range_of(a, "strength", kMostTurn / 0.2);
    return {kFactor * strength, kFactor * strength, kFactor * strength, kTurn * strength};
  }
  Jitter jitter_;
  Probability p_, grey_;
};

class Grayscale : public RandomViewOp {
 public:
  explicit Grayscale(const Arguments& a) : RandomViewOp(a) {}

 protected:
  void change(const Image& image, Draws&) const override {
    Planes planes(image);
    pillow::grayscale(planes);
    planes.store(image);
  }
};

class GaussianBlur : public RandomViewOp {
 public:
  explicit GaussianBlur(const Arguments& a) : RandomViewOp(a) {
    constexpr float kMost = 1000;
    const std::vector<float> radius = a.numbers("radius");
    low_ = radius.front();
    high_ = radius.back();
    if (radius.size() > 2 || !(low_ >= 0 && low_ <= high_ && high_ <= kMost))
      a.fail("radius",
             fmt::format("radius is one number or [smallest, largest], from 0 to {}", kMost));
  }

 protected:
  void change(const Image& image, Draws& draw) const override {
    pillow::gaussian_blur(image, between(low_, high_, draw));
  }

 private:
  float low_, high_;
};

// Thresholds of random solarizing: 0 inverts all bytes, 256 none.
constexpr int64_t kThresholds = 257;

class Solarize : public RandomViewOp {
 public:
  explicit Solarize(const Arguments& a)
      : RandomViewOp(a), threshold_(a.has("threshold") ? a.integer("threshold") : -1) {
    if (a.has("threshold") && (threshold_ < 0 || threshold_ >= kThresholds))
      a.fail("threshold", fmt::format("threshold is {}; it may be 0 to 256", threshold_));
  }

 protected:
  void change(const Image& image, Draws& draw) const override {
    pillow::solarize(image, int(threshold_ < 0 ? draw.below(kThresholds) : threshold_));
  }

 private:
  int64_t threshold_;  // -1: drawn
};

class Photometric : public RandomViewOp {
 public:
  explicit Photometric(const Arguments& a) : RandomViewOp(a) {}

 protected:
  void change(const Image& image, Draws& draw) const override {
    constexpr int kFewestBits = 4, kNumbersOfBits = 5;
    pillow::posterize(image, kFewestBits + int(draw.below(kNumbersOfBits)));
    pillow::sharpness(image, between(0.1f, 1.9f, draw));
    pillow::solarize(image, int(draw.below(kThresholds)));
    Planes planes(image);
    pillow::autocontrast(planes);
    planes.store(image);
  }
};

template <class T>
std::unique_ptr<Op> make_view_op(const Arguments& a, const OpEnvironment&) {
  return std::make_unique<T>(a);
}

}  // namespace

OpRow color_jitter_row() {
  using Type = Parameter::Type;
  return {"color_jitter",
          "brightness, contrast, saturation and hue change at random, in random order",
          on_views({{"brightness", Type::number, "0", "a factor in [1 - x, 1 + x]; 0: none"},
                    {"contrast", Type::number, "0", "likewise"},
                    {"saturation", Type::number, "0", "likewise"},
                    {"hue", Type::number, "0", "a turn in [-x, x] of the colour circle, x <= 0.5"},
                    Probability::parameter("p", "1")}),
          make_view_op<ColorJitter>};
}

OpRow color_distortion_row() {
  return {"color_distortion", "color_jitter of 0.8, 0.8, 0.8, 0.2 times strength, then grayscale",
          on_views({{"strength", Parameter::Type::number, "1", "0 to 2.5"},
                    Probability::parameter("p", "0.8"),
                    Probability::parameter("p_gray", "0.2")}),
          make_view_op<ColorDistortion>};
}

OpRow grayscale_row() {
  return {"grayscale", "grey pixels, still in three channels",
          on_views({Probability::parameter("p", "0.2")}), make_view_op<Grayscale>};
}

OpRow gaussian_blur_row() {
  return {"gaussian_blur", "Pillow's Gaussian blur",
          on_views({Probability::parameter("p", "0.5"),
                    {"radius", Parameter::Type::numbers, "[0.1, 2.0]",
                     "deviation in pixels: smallest and largest, or one number"}}),
          make_view_op<GaussianBlur>};
}

OpRow solarize_row() {
  return {"solarize", "inverts the bytes from a threshold on",
          on_views({Probability::parameter("p", "0.5"),
                    {"threshold", Parameter::Type::integer, "None", "none: drawn from 0 to 256"}}),
          make_view_op<Solarize>};
}

OpRow photometric_row() {
  return {"photometric", "posterize, sharpness, solarize, each at random, and autocontrast",
          on_views({Probability::parameter("p", "0.66")}), make_view_op<Photometric>};
}

}  // namespace data
