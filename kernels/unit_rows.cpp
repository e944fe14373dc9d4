// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of rows of unit length.
#include "kernels/unit_rows.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

void check_rows(Op op, const View& x, const View& sums, int64_t begin, int64_t width) {
  need_size(op, "width", width, 1);
  need_size(op, "begin", begin);
  need_view(op, "x", x, DType::f32, {x.count});
  need_view(op, "sums", sums, DType::f64, {sums.count});
  CHECK(begin + x.count <= sums.count * width, "{}: elements [{}, {}) lie in no {} rows of {}",
        name_of(op), begin, begin + x.count, sums.count, width);
}

}  // namespace

void check(const RowSquares& a) { check_rows(a.op, a.x, a.sums, a.begin, a.width); }
Cost cost(const RowSquares& a) {
  return {2 * a.x.count, a.x.bytes() + 8 * (a.x.count / a.width + 1)};
}

void check(const UnitRows& a) {
  check_rows(a.op, a.x, a.sums, a.begin, a.width);
  allow_view(a.op, "decided", a.decided, DType::f32, {3});
}
Cost cost(const UnitRows& a) {
  return {a.x.count, 2 * a.x.bytes() + 8 * (a.x.count / a.width + 1)};
}

}  // namespace kernels
