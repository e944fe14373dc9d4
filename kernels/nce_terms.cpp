// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of noise-contrastive estimation.
#include "kernels/nce_terms.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const NceTotals& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "total", a.total, DType::f64, {1});
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
}
Cost cost(const NceTotals& a) { return {2 * a.logits.count, a.logits.bytes()}; }
size_t cuda_scratch(const NceTotals& a) { return size_t(a.rows) * sizeof(double); }

void check(const NceConstant& a) {
  need_view(a.op, "constant", a.constant, DType::f32, {1});
  need_view(a.op, "total", a.total, DType::f64, {1});
  CHECK(a.count > 0 && a.samples > 0, "{}: {} values of {} samples", name_of(a.op), a.count,
        a.samples);
}
Cost cost(const NceConstant&) { return {2, 16}; }

void check(const NceTerms& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 2);
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
  need_view(a.op, "loss", a.loss, DType::f32, {a.rows});
  if (a.kind == NceKind::nce) need_view(a.op, "constant", a.constant, DType::f32, {1});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.samples > 0, "{}: {} samples", name_of(a.op), a.samples);
}
Cost cost(const NceTerms& a) { return {8 * a.logits.count, 2 * a.logits.bytes()}; }

}  // namespace kernels
