// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of Adafactor's ops.
#include "kernels/adafactor.hpp"

namespace kernels {

void check(const AdafactorSums& a) {
  CHECK(a.total.type == DType::f64 && a.total.count == 1);
  CHECK(a.over_x.type == DType::f64 && a.over_x.count == a.shape.over_x());
  CHECK(a.over_y.type == DType::f64 && a.over_y.count == a.shape.over_y());
  CHECK(a.g.type == DType::f32 && a.begin >= 0 && a.begin + a.g.count <= a.shape.count());
}

Cost cost(const AdafactorSums& a) { return {3 * a.g.count, a.g.bytes()}; }

void check(const AdafactorFactors& a) {
  check(a.clip);
  const int64_t nx = a.shape.over_x(), ny = a.shape.over_y();
  CHECK(a.over_x.type == DType::f64 && a.over_y.type == DType::f64 && a.over_x.count == nx &&
        a.over_y.count == ny);
  for (const View& v : {a.v_over_x, a.factor_over_x}) CHECK(v.type == DType::f32 && v.count == nx);
  for (const View& v : {a.v_over_y, a.factor_over_y}) CHECK(v.type == DType::f32 && v.count == ny);
}

Cost cost(const AdafactorFactors& a) {
  const int64_t n = a.shape.over_x() + a.shape.over_y();
  return {8 * n, 20 * n};
}

namespace {

void check(const AdafactorScaling& a, int64_t count) {
  if (!a.v.none()) {
    CHECK(a.v.type == DType::f32 && a.v.count == count);
    return;
  }
  CHECK(a.factor_over_x.type == DType::f32 && a.factor_over_x.count == a.shape.over_x());
  CHECK(a.factor_over_y.type == DType::f32 && a.factor_over_y.count == a.shape.over_y());
  CHECK(a.begin >= 0 && a.begin + count <= a.shape.count());
}

}  // namespace

void check(const AdafactorUpdate& a) {
  check(a.update);
  check(a.scaling, a.update.count());
  CHECK(a.momentum.none() || a.momentum.type == DType::f32 || a.momentum.type == DType::bf16);
  CHECK(a.momentum.none() || a.momentum.count == a.update.count());
  CHECK(a.rms.square.none() || (a.rms.square.type == DType::f64 && a.rms.square.count == 1));
  CHECK(a.rms.square.none() || (a.rms.elements >= a.update.count() && a.rms.threshold > 0));
}

Cost cost(const AdafactorUpdate& a) {
  const int64_t n = a.update.count();
  const bool element = !a.scaling.v.none();
  return {(element ? 13 : 10) * n, 12 * n + (element ? 8 * n : 0) + 2 * a.momentum.bytes()};
}

void check(const AdafactorRms& a) {
  CHECK(a.sum.type == DType::f64 && a.sum.count == 1);
  CHECK(a.gradient.type == DType::f32);
  check(a.clip);
  check(a.scaling, a.gradient.count);
}

Cost cost(const AdafactorRms& a) {
  return {6 * a.gradient.count, (a.scaling.v.none() ? 4 : 12) * a.gradient.count};
}

}  // namespace kernels
