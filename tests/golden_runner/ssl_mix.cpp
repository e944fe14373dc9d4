// SPDX-License-Identifier: Apache-2.0
#include "ssl_mix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "models/classes/class_objective.hpp"
#include "on_device.hpp"

namespace golden {
namespace {

constexpr const char* kRoot = "mix";
// Returns the collator's smoothing, which the file does not hold, from the smallest target.
double smoothing_of(const std::vector<float>& targets, int64_t classes) {
  return double(*std::min_element(targets.begin(), targets.end())) * double(classes);
}

class Mixes {
 public:
  Mixes(const CaseFile& file, const Settings& settings) : file_(file), settings_(settings) {
    const std::string name = "mix/inputs/image";
    const Shape shape = file.shape(name);
    if (shape.size() != 4) file.fail(name, "is no batch [images, channels, height, width]");
    if (shape[1] != 3) file.fail(name, "has not 3 channels");
    batch_ = shape[0];
    height_ = shape[2];
    width_ = shape[3];
    images_ = pixels_last(file.floats(name, shape));
    labels_ = file.ints("mix/inputs/label", {batch_});
  }

  void run(const std::string& group, Report& report) const {
    const std::string set = fmt::format("{}/{}", kRoot, group);
    const std::vector<models::Mix> mixes = recorded(set);
    const std::string image = set + "/image", target = set + "/target";
    const std::vector<float> want = pixels_last(file_.floats(image, {batch_, 3, height_, width_}));
    const std::vector<float> got = mixed(mixes);
    report.compare("mixed images", image, got.data(), want.data(), int64_t(got.size()),
                   file_.tolerance(image));
    const Shape shape = file_.shape(target);
    if (shape.size() != 2 || shape[0] != batch_) file_.fail(target, "is no table of the images");
    const std::vector<float> wanted = file_.floats(target, shape);
    const std::vector<float> made = targets(mixes, wanted, shape[1]);
    report.compare("mixed targets", target, made.data(), wanted.data(), int64_t(made.size()),
                   file_.tolerance(target));
  }

 private:
  int64_t partner(int64_t b) const {
    return kernels::mix_partner(b, batch_, kernels::MixPartner::mirrored);
  }
  std::vector<float> pixels_last(const std::vector<float>& planes) const {
    std::vector<float> out(planes.size());
    const int64_t pixels = height_ * width_;
    for (int64_t b = 0; b < batch_; ++b)
      for (int64_t p = 0; p < pixels; ++p)
        for (int64_t c = 0; c < 3; ++c)
          out[size_t((b * pixels + p) * 3 + c)] = planes[size_t((b * 3 + c) * pixels + p)];
    return out;
  }

  // Returns which of `count` recorded draws belongs to an example: there is one for the batch, for
  // each pair or for each example.
  size_t draw_of(const std::string& set, int64_t b, size_t count) const {
    if (count == 1) return 0;
    if (int64_t(count) == batch_) return size_t(b);
    if (int64_t(count) * 2 == batch_) return size_t(std::min(b, partner(b)));
    file_.fail(set, fmt::format("{} draws for {} images", count, batch_));
  }

  std::vector<models::Mix> recorded(const std::string& set) const {
    const std::vector<double> shares = file_.numbers(set, "lam");
    const nlohmann::json boxes = file_.json(set, "boxes");
    std::vector<models::Mix> mixes(static_cast<size_t>(batch_));
    for (int64_t b = 0; b < batch_; ++b) {
      models::Mix& mix = mixes[size_t(b)];
      if (boxes.empty()) {
        mix.share = mix.blend = float(shares.at(draw_of(set, b, shares.size())));
        continue;
      }
      const nlohmann::json& box = boxes.at(draw_of(set, b, boxes.size())).at(0);
      for (size_t i = 0; i < 4; ++i) mix.box[i] = box.at(i).get<int32_t>();
      mix.share = float(models::share_left(mix.box, height_, width_));
    }
    return mixes;
  }

  std::vector<float> mixed(const std::vector<models::Mix>& mixes) const {
    std::vector<float> blends, out(images_.size());
    std::vector<int32_t> boxes;
    for (const models::Mix& mix : mixes) {
      blends.push_back(mix.blend);
      boxes.insert(boxes.end(), mix.box.begin(), mix.box.end());
    }
    OnDevice device(settings_);
    const device::View y = device.copy(out), shares = device.copy(blends);
    device.run(kernels::MixImages{.y = y,
                                  .x = device.copy(images_),
                                  .shares = shares,
                                  .batch = batch_,
                                  .count = height_ * width_ * 3,
                                  .group = batch_,
                                  .partner = kernels::MixPartner::mirrored,
                                  .boxes = device.copy(boxes),
                                  .row_values = width_ * 3});
    device.read(y, out);
    return out;
  }

  std::vector<float> targets(const std::vector<models::Mix>& mixes, const std::vector<float>& want,
                             int64_t classes) const {
    const models::ClassLossOptions options{.label_smoothing = smoothing_of(want, classes),
                                           .smooth_over_all = true};
    kernels::ClassTarget t = kernels::class_target(float(options.smoothing(classes)), classes);
    std::vector<float> out;
    for (int64_t b = 0; b < batch_; ++b) {
      t.label = labels_[size_t(b)];
      t.other = labels_[size_t(partner(b))];
      t.share = mixes[size_t(b)].share;
      for (int64_t c = 0; c < classes; ++c) out.push_back(t.at(c));
    }
    return out;
  }

  const CaseFile& file_;
  const Settings& settings_;
  int64_t batch_ = 0, height_ = 0, width_ = 0;
  std::vector<float> images_;  // [batch, height, width, 3]
  std::vector<int32_t> labels_;
};

}  // namespace

bool holds_mixes(const CaseFile& file) { return file.has("mix/inputs/image"); }

void run_mixes(const CaseFile& file, const Settings& settings, Report& report) {
  const Mixes mixes(file, settings);
  std::set<std::string> groups;
  for (const std::string& set : file.below(kRoot)) groups.insert(set.substr(0, set.find('/')));
  groups.erase("inputs");
  for (const std::string& group : groups) mixes.run(group, report);
}

}  // namespace golden
