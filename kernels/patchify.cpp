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

Cost cost(const Patchify& a) {
  return {0, (device::size_of(a.patches.type) + device::size_of(a.image.type)) * a.rows() *
                 a.elements()};
}

}  // namespace kernels
