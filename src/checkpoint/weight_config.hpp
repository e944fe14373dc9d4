// SPDX-License-Identifier: Apache-2.0
// Files that other programs write beside weights: config.json and preprocessor_config.json of
// transformers, config.json of timm, open_clip_config.json. No tensor shows their values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace checkpoint {

struct WeightConfig {
  std::vector<std::string> files{};   // names of those that were read
  int64_t heads = 0, image_size = 0;  // 0: not said, as for the numbers below
  std::string gelu{};                 // a value of model.trunk.gelu; "" : not said
  double norm_epsilon = 0;
  // Statements that fit no ViT of this program: "hidden_act = \"relu\"".
  std::vector<std::string> foreign{};
  std::vector<double> mean{}, deviation{};  // of red, green, blue, in [0, 1]
  std::string interpolation{};              // "bicubic", "bilinear"
  // An image is resized until its shorter side is `resized`, or to a square of it if `squashed`.
  // Then the middle of image_size is kept.
  int64_t resized = 0;
  bool squashed = false;
};

// Reads those that lie in the folder of the file, or in this folder. What is malformed is passed
// over.
WeightConfig read_weight_config(const std::string& weights);

}  // namespace checkpoint
