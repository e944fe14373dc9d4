// SPDX-License-Identifier: Apache-2.0
#include "train/init_images.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace train {
namespace {

// The published numbers have three digits, and a range that is a little off is no mistake.
constexpr double kFar = 0.02;

// Pixels p of 0 to 1 become (p - mean) / deviation.
struct Normalisation {
  std::vector<double> mean{}, deviation{};
};

// From the formula of kernels::PixelRange: the byte that becomes 0, and the bytes for a step of 1.
Normalisation normalisation_of(const data::ByteScale& s) {
  Normalisation out;
  for (size_t c = 0; c < 3; ++c) {
    const double byte = double(s.low) + (double(s.mean[c]) - double(s.to_low)) * double(s.width) /
                                            double(s.to_width);
    out.mean.push_back(byte / 255);
    out.deviation.push_back(double(s.deviation[c]) * double(s.width) / double(s.to_width) / 255);
  }
  return out;
}

bool far_apart(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::abs(a[i] - b[i]) > kFar) return true;
  return false;
}

}  // namespace

std::string image_difference(const Recipe& recipe, const std::string& from,
                             const checkpoint::WeightConfig& said) {
  const std::vector<std::string> fields = recipe.pixel_fields();
  if (fields.empty() || said.mean.empty()) return "";
  std::string text;
  for (const std::string& set : recipe.sets_in_use()) {
    std::optional<data::ByteScale> scale;
    try {
      scale = recipe.data.byte_scale_of(set, fields.front());
    } catch (const base::Error&) {
      continue;  // a needed file is missing; opening the set reports it
    }
    if (!scale || scale->to_width == 0) continue;
    const Normalisation own = normalisation_of(*scale);
    if (far_apart(own.mean, said.mean) || far_apart(own.deviation, said.deviation))
      text += fmt::format("\n  data.{}: mean {:.3g}, deviation {:.3g}", set,
                          fmt::join(own.mean, " "), fmt::join(own.deviation, " "));
  }
  if (text.empty()) return "";
  return fmt::format(
      "{} beside {} says that images had mean {:.3g} and deviation {:.3g} of values in 0 to 1; "
      "these sets scale them in another way, and features are then worse (--mode weights prints "
      "the ops):{}",
      fmt::join(said.files, ", "), from, fmt::join(said.mean, " "), fmt::join(said.deviation, " "),
      text);
}

}  // namespace train
