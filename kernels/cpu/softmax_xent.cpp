// SPDX-License-Identifier: Apache-2.0
// CPU implementation of softmax cross-entropy. vector_rows.hpp computes its rows.
#include "kernels/softmax_xent.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

void run_cpu(const SoftmaxXent& a, Queue& queue) {
  const VectorTable& table = vector_table();
  CHECK(a.rounded.none() || a.rounded.type == DType::bf16, "{}: only GPUs have f16", name_of(a.op));
  float *logits = a.logits.f32(), *loss = a.loss.f32();
  const int32_t* labels = a.labels.i32();
  float on = 1 - a.smoothing, off = a.smoothing > 0 ? (1 - on) / float(a.columns - 1) : 0;
  const float loss_scale = a.loss_scale.none() ? 1 : *a.loss_scale.f32();
  for_ranges(queue, a.rows, a.rows * a.columns, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      float* row = logits + r * a.columns;
      loss[r] = table.softmax_xent_row({.logits = row,
                                        .columns = a.columns,
                                        .label = labels[r],
                                        .on = on,
                                        .off = off,
                                        .gradient = a.gradient,
                                        .scale = a.gradient ? a.row_scale.f32()[r] * loss_scale : 0,
                                        .next = r + 1 < end ? row + a.columns : nullptr});
      if (!a.rounded.none()) table.to_bf16(a.rounded.bf16() + r * a.columns, row, a.columns);
    }
  });
}

}  // namespace kernels
