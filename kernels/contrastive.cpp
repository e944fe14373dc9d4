// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of InfoNCE.
#include "kernels/contrastive.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

void check_shape(Op op, const ContrastiveShape& s) {
  need_size(op, "rows", s.rows);
  need_size(op, "views", s.views, 2);
  need_size(op, "group", s.group);
  CHECK(s.rows % s.views == 0 && s.columns % s.views == 0 && s.first % s.views == 0,
        "{}: {} rows from {} on and {} columns are not whole examples of {} views", name_of(op),
        s.rows, s.first, s.columns, s.views);
  CHECK(s.first >= 0 && s.first + s.rows <= s.columns, "{}: rows [{}, +{}) of {}", name_of(op),
        s.first, s.rows, s.columns);
}

}  // namespace

void check(const ContrastiveTerms& a) {
  check_shape(a.op, a.shape);
  need_view(a.op, "terms", a.terms, DType::f64, {a.shape.rows, 2});
  need_view(a.op, "loss", a.loss, DType::f32, {a.shape.rows / a.shape.views});
  need_view(a.op, "logits", a.logits, DType::f32, {a.shape.rows, a.shape.columns});
}

Cost cost(const ContrastiveTerms& a) { return {2 * a.logits.count, a.logits.bytes()}; }

void check(const ContrastiveGradient& a) {
  check_shape(a.op, a.shape);
  need_view(a.op, "terms", a.terms, DType::f64, {a.shape.columns, 2});
  need_view(a.op, "logits", a.logits, DType::f32, {a.shape.rows, a.shape.columns});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
}

Cost cost(const ContrastiveGradient& a) { return {4 * a.logits.count, 2 * a.logits.bytes()}; }

}  // namespace kernels
