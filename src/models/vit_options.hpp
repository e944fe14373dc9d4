// SPDX-License-Identifier: Apache-2.0
// Keys of a ViT.
#pragma once

#include <string>

#include "config/table.hpp"
#include "models/vit.hpp"

namespace models {

struct EncoderOptions {
  std::string variant;  // for example "B/16": sets patch, depth, width, mlp, heads by default
  int64_t patch = 16, depth = 12, width = 768, mlp = 3072, heads = 12;
  double dropout = 0;
  int64_t patch_width = 0;  // for patches that are not square, 0 = patch; set by tests, not a key
  void bind(config::Table& t);

  int64_t patch_columns() const { return patch_width ? patch_width : patch; }
};

// Returns the configuration of a ViT on images of that size. posemb: "learn" or "sincos2d".
VitConfig vit_config(const EncoderOptions& options, int64_t image_height, int64_t image_width,
                     bool learned_positions);

}  // namespace models
