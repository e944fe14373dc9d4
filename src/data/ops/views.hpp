// SPDX-License-Identifier: Apache-2.0
// Views of an image: several versions of it in one sample. A field "image" [views, height, width,
// 3] holds them. Views of other sizes are in "image1", "image2" and so on, and an op on "image"
// works on all of them, in this order. An image [height, width, 3] is not a view.
#pragma once

#include <string>
#include <vector>

#include "data/images/pillow.hpp"
#include "data/ops/image_op.hpp"

namespace data {

// Marks an image that is not a view. Its draws come from the op's stream.
constexpr int64_t kNoView = -1;

// Return the fields of the views: `key`, then "key1", "key2", ... as long as `key` and these fields
// hold views.
std::vector<std::string> view_fields(const Spec& spec, const std::string& key);
std::vector<std::string> view_fields(const Sample& sample, const std::string& key);
// Returns true if `field` is one of the view_fields.
bool is_view_field(const Spec& spec, const std::string& key, const std::string& field);
// Returns the field that an op writes for field `field` of `keys.in`.
std::string written_field(const Keys& keys, const std::string& field);
// Returns the number of views in all fields; kNoView for an image.
int64_t count_views(const Spec& spec, const std::string& key);
// Returns the draws of a view.
Draws draws_of(const OpContext& context, int64_t view);

// The draws of a crop, in the form that random_box asks for. Its products and sums must
// not be fused.
struct CropDraws {
  Draws draws;
  float uniform(double low, double high) {
    return draws.uniform() * (float(high) - float(low)) + float(low);
  }
  int64_t below(int64_t n) { return draws.below(n); }
};

// Throw unless the array holds RGB bytes, as the exact transforms need: the first one for a spec
// (Exit::config), the second one for a sample (Exit::data).
const FieldSpec& rgb_bytes_of(const Spec& spec, const std::string& key);
void check_rgb_bytes(const Array& array, const std::string& key);
// Returns view `view` of an array [views, height, width, 3], or the image [height, width, 3].
pillow::Image view_of(const Array& array, int64_t view);

// Changes RGB bytes view by view, and keeps their sizes.
class ViewOp : public Op {
 public:
  Spec propagate(Spec spec) const override;
  void apply(Sample& sample, const OpContext& context) const override;

 protected:
  explicit ViewOp(const Arguments& arguments) : keys_(keys_of(arguments)) {}
  // `view` counts the views of all fields; kNoView for an image.
  virtual void visit(const pillow::Image& image, int64_t view, Draws& draw) const = 0;
  // Throws Error(Exit::config) if an argument does not fit this number of views.
  virtual void check_views(int64_t /*views*/) const {}

 private:
  Keys keys_;
};

// A probability for all views, or one for each.
class Probability {
 public:
  Probability(const Arguments& arguments, const std::string& name);
  static Parameter parameter(const std::string& name, const std::string& otherwise);
  void check_views(int64_t views) const;
  // Draws a number even if the probability is 0 or 1.
  bool draw(int64_t view, Draws& draw) const {
    return draw.uniform() < each_[each_.size() == 1 ? 0 : size_t(view)];
  }

 private:
  std::string name_;
  std::vector<float> each_;
};

// A ViewOp that changes a view with a probability.
class RandomViewOp : public ViewOp {
 protected:
  explicit RandomViewOp(const Arguments& arguments) : ViewOp(arguments), p_(arguments, "p") {}
  void check_views(int64_t views) const override { p_.check_views(views); }
  void visit(const pillow::Image& image, int64_t view, Draws& draw) const final {
    if (p_.draw(view, draw)) change(image, draw);
  }
  virtual void change(const pillow::Image& image, Draws& draw) const = 0;

 private:
  Probability p_;
};

// Returns the parameters, followed by key_parameters("image", "image").
std::vector<Parameter> on_views(std::vector<Parameter> own);

}  // namespace data
