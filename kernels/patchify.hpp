// SPDX-License-Identifier: Apache-2.0
// Cuts images into rows of patches in (row, column, channel) order (cappa.md 1.4), so that the
// convolution of the stem becomes a product. Images may come as bytes, which are a quarter of the
// traffic to the device; the op then scales them.
#pragma once

#include "kernels/check_views.hpp"
#include "kernels/pixel_range.hpp"

namespace kernels {

struct Patchify {
  static constexpr Op op = Op::patchify;
  static constexpr int64_t kChannels = 3;
  // f32, bf16 or f16 [batch * (height/patch) * (width/patch_width), patch * patch_width * 3]
  View patches;
  View image;  // f32 or u8 [batch, height, width, 3]
  int64_t batch = 0, height = 0, width = 0;
  int64_t patch = 0, patch_width = 0;  // height and width; width 0: square
  PixelRange range{};                  // of bytes
  int64_t stride = 0;  // elements from a row of patches to the next; 0: the elements of a patch

  // Returns the width of a patch.
  int64_t columns() const { return patch_width ? patch_width : patch; }
  int64_t elements() const { return patch * columns() * kChannels; }  // of a patch
  int64_t rows() const { return batch * (height / patch) * (width / columns()); }
  int64_t next() const { return stride ? stride : elements(); }
};

inline void check(const Patchify& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "patch", a.patch, 1);
  need_size(a.op, "height", a.height, a.patch);
  need_size(a.op, "patch_width", a.patch_width);
  need_size(a.op, "width", a.width, a.columns());
  // Pixels left over at the right and bottom edges are not used.
  need_activation(a.op, "patches",
                  a.next() == a.elements()
                      ? a.patches
                      : View{a.patches.data, a.patches.type, a.rows() * a.elements()},
                  {a.rows(), a.elements()});
  need_matrix(a.op, "patches", a.patches, a.patches.type, a.rows(), a.elements(), a.next());
  need_view(a.op, "image", a.image, a.image.type == DType::u8 ? DType::u8 : DType::f32,
            {a.batch, a.height, a.width, Patchify::kChannels});
  CHECK(a.range.valid(), "{}: the range of bytes has no width", name_of(a.op));
}

inline Cost cost(const Patchify& a) {
  return {0, (device::size_of(a.patches.type) + device::size_of(a.image.type)) * a.rows() *
                 a.elements()};
}

}  // namespace kernels
