// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of patchify.
#include "kernels/patchify.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const Patchify& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "patch", a.patch, 1);
  need_size(a.op, "height", a.height, a.patch);
  need_size(a.op, "patch_width", a.patch_width);
  need_size(a.op, "width", a.width, a.columns());
  // Pixels left over at the right and bottom edges are not used.
  int64_t rows = a.height / a.patch, columns = a.width / a.columns();
  need_activation(a.op, "patches", a.patches,
                  {a.batch * rows * columns, a.patch * a.columns() * Patchify::kChannels});
  need_view(a.op, "image", a.image, a.image.type == DType::u8 ? DType::u8 : DType::f32,
            {a.batch, a.height, a.width, Patchify::kChannels});
  CHECK(a.range.valid(), "{}: the range of bytes has no width", name_of(a.op));
}

Cost cost(const Patchify& a) {
  return {0, a.patches.bytes() + device::size_of(a.image.type) * a.patches.count};
}

}  // namespace kernels
