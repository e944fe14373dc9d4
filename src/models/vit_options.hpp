// SPDX-License-Identifier: Apache-2.0
// Keys of a ViT, for the models that have one.
#pragma once

#include <string>

#include "config/table.hpp"
#include "models/vit.hpp"

namespace models {

struct EncoderOptions {
  std::string variant;  // "B/16": sets patch, depth, width, mlp, heads unless they are given
  int64_t patch = 16, depth = 12, width = 768, mlp = 3072, heads = 12;
  double dropout = 0;
  int64_t patch_width = 0;  // patches that are not square (set by tests, not a key); 0 = patch
  void bind(config::Table& t);

  int64_t patch_columns() const { return patch_width ? patch_width : patch; }
};

// The configuration of a ViT on images of that size.
VitConfig vit_config(const EncoderOptions& options, int64_t image_height, int64_t image_width,
                     bool learned_positions);

}  // namespace models
