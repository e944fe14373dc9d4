// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the sums over examples.
#include "kernels/loss_sums.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const LossSums& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "length", a.length, 1);
  need_size(a.op, "slices", a.slices, 1);
  CHECK(a.batch % a.slices == 0, "{}: {} examples cannot be divided into {} slices", name_of(a.op),
        a.batch, a.slices);
  need_view(a.op, "sums", a.sums, DType::f64, {a.slices, LossColumns::count});
  need_view(a.op, "loss", a.loss, DType::f32, {a.loss.count});
  need_view(a.op, "first", a.first, DType::i32, {a.batch});
  need_view(a.op, "weights", a.weights, DType::f32, {a.batch, a.length});
  allow_view(a.op, "flags", a.flags, DType::u8, {a.batch});
}

Cost cost(const LossSums& a) { return {3 * a.weights.count, a.loss.bytes() + a.weights.bytes()}; }

}  // namespace kernels
