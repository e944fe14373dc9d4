// SPDX-License-Identifier: Apache-2.0
// Tests the layer of group norm: gradients against differences of a double reference, in slices,
// with two sizes of images, in training and in evaluation.
#include "nn/group_norm.hpp"

#include "nn/image_norm.hpp"
#include "rig.hpp"

namespace {

using device::View;
using rig::Doubles;
using rig::Subject;

constexpr int64_t kNormWidth = 6, kNormGroups = 3;
const nn::ImageSize kLargeImages{2, 2, 3}, kSmallImages{1, 1, 2};  // views, height, width

// Normalises x [images, pixels, width], as published.
Doubles group_normalised(const Doubles& scale, const Doubles& bias, const Doubles& x,
                         int64_t images) {
  Doubles y(x.size());
  const int64_t pixels = int64_t(x.size()) / images / kNormWidth,
                of_group = kNormWidth / kNormGroups;
  for (int64_t n = 0; n < images; ++n)
    for (int64_t first = 0; first < kNormWidth; first += of_group) {
      auto for_all = [&](const auto& f) {
        for (int64_t p = 0; p < pixels; ++p)
          for (int64_t c = first; c < first + of_group; ++c)
            f(size_t((n * pixels + p) * kNormWidth + c), size_t(c));
      };
      double mean = 0, variance = 0;
      for_all([&](size_t i, size_t) { mean += x[i] / double(pixels * of_group); });
      for_all([&](size_t i, size_t) {
        variance += (x[i] - mean) * (x[i] - mean) / double(pixels * of_group);
      });
      for_all([&](size_t i, size_t c) {
        y[i] = (x[i] - mean) / std::sqrt(variance + 1e-5) * scale[c] + bias[c];
      });
    }
  return y;
}

Subject group_subject(bool two_sizes, bool train = true) {
  Subject s;
  s.name = "group norm";
  s.train = train;
  s.parameters = {{"scale", {kNormWidth}, true, 0.3, 1}, {"bias", {kNormWidth}}};
  s.inputs = {kLargeImages.pixels() * kNormWidth};
  if (two_sizes) s.inputs.push_back(kSmallImages.pixels() * kNormWidth);
  for (int64_t n : s.inputs) s.output += n;
  s.tolerance = 1e-5;
  // y of the first size of all examples comes before y of the second.
  s.reference = [](const std::vector<Doubles>& p, const std::vector<Doubles>& x, int64_t batch,
                   int64_t) {
    Doubles y;
    for (size_t i = 0; i < x.size(); ++i) {
      const Doubles part =
          group_normalised(p[0], p[1], x[i], batch * (i ? kSmallImages : kLargeImages).per_example);
      y.insert(y.end(), part.begin(), part.end());
    }
    return y;
  };
  s.run = [](nn::Context& ctx, const std::vector<View>& x, View y, View dy,
             const std::vector<View>& dx) {
    device::Arena::Scope scope(ctx.arena);
    const nn::ImageNorm norm =
        nn::GroupNorm{.scale = 0, .bias = 1, .width = kNormWidth, .groups = kNormGroups};
    std::vector<nn::ImageNorm::Passed> all;
    int64_t at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const nn::ImageSize& size = i ? kSmallImages : kLargeImages;
      const nn::ImageNorm::Saved saved = norm.make_saved(ctx, false, size);
      norm.measure(ctx, x[i], size, saved);
      ctx.run(norm.normalise(ctx, x[i], size, saved, y.slice(at, x[i].count)));
      all.push_back(
          {.x = x[i], .saved = saved, .size = size, .dy = dy.slice(at, x[i].count), .dx = dx[i]});
      at += x[i].count;
    }
    norm.backward(ctx, all, false);
  };
  return s;
}

TEST(GroupNormLayer, GradientsAndSlices) { rig::check(group_subject(false)); }
TEST(GroupNormLayer, EvaluatesAsItTrains) { rig::check(group_subject(false, false)); }

// Compares a whole batch with two sizes of images, in slices, with the reference.
TEST(GroupNormLayer, TwoSizesHaveStatisticsOfTheirOwn) {
  const Subject s = group_subject(true);
  std::vector<Doubles> parameters, inputs;
  for (const rig::Tensor& t : s.parameters)
    parameters.push_back(rig::numbers(kNormWidth, s.name + t.path, t.scale, t.shift));
  for (size_t i = 0; i < s.inputs.size(); ++i)
    inputs.push_back(rig::numbers(s.batch * s.inputs[i], fmt::format("{}/x{}", s.name, i)));
  const Doubles dy = rig::numbers(s.batch * s.output, s.name + "/dy");
  for (int64_t slices : {1, 4}) {
    SCOPED_TRACE(slices);
    const rig::Result got = rig::run(s, parameters, inputs, dy, 0, s.batch, slices);
    rig::expect_close(got.y, s.reference(parameters, inputs, s.batch, 0), s, "forward");
    for (size_t i = 0; i < inputs.size(); ++i)
      rig::expect_close(got.inputs[i], rig::differences(s, parameters, inputs, dy, inputs[i]), s,
                        "input");
    for (size_t p = 0; p < parameters.size(); ++p)
      rig::expect_close(got.parameters[p],
                        rig::differences(s, parameters, inputs, dy, parameters[p]), s, "parameter");
  }
}

}  // namespace
