// SPDX-License-Identifier: Apache-2.0
// Keys of [model] kind = "mae" (mae.md 1).
#pragma once

#include "config/table.hpp"
#include "models/trunks/vit_options.hpp"

namespace models {

// Keys of [model] decoder.
struct MaeDecoderOptions {
  int64_t depth = 8, width = 512, mlp = 0, heads = 16;
  void bind(config::Table& t);

  int64_t hidden() const { return mlp ? mlp : 4 * width; }
};

struct MaeOptions : config::Table::Variant {
  // Height and width. Tests with images that are not square set image_height and image_width.
  int64_t image_size = 224;
  int64_t image_height = 0, image_width = 0;
  double mask_ratio = 0.75;
  bool normalize_pixels = true;
  TrunkOptions trunk;  // a ViT
  MaeDecoderOptions decoder;
  void bind(config::Table& t) override;

  int64_t height() const { return image_height ? image_height : image_size; }
  int64_t width() const { return image_width ? image_width : image_size; }
  const VitTrunkOptions& vit() const {
    return dynamic_cast<const VitTrunkOptions&>(*trunk.options);
  }
  // Returns the patches of an image, and those that the encoder reads. The published code cuts off
  // the fraction.
  int64_t patches() const {
    return (height() / vit().size.patch) * (width() / vit().size.patch_columns());
  }
  int64_t kept() const { return int64_t(double(patches()) * (1 - mask_ratio)); }
  int64_t masked() const { return patches() - kept(); }
  // Returns the numbers of a patch's pixels.
  int64_t pixels() const { return vit().size.patch * vit().size.patch_columns() * 3; }
};

}  // namespace models
