// SPDX-License-Identifier: Apache-2.0
#include "optim/orthogonal.hpp"

#include "base/elementary.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"
#include "kernels/l2_normalize.hpp"

namespace optim {
namespace {
// The published polynomial a x + b x^3 + c x^5. Its slope at 0 is large, so that small singular
// values grow fast; the large ones end between 0.7 and 1.2.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

device::Buffer floats(device::Kind kind, device::Ledger& ledger, int64_t count) {
  return {kind, ledger, "workspace", count * size_of(device::DType::f32)};
}
}  // namespace

NewtonSchulz::NewtonSchulz(device::Kind kind, device::Ledger& ledger, int64_t elements,
                           int64_t side)
    : product_(floats(kind, ledger, elements)),
      square_(floats(kind, ledger, side * side)),
      fourth_(floats(kind, ledger, side * side)) {}

double NewtonSchulz::factor(int64_t steps) { return base::math::pow(kA, double(steps)); }

// With X = s Y, a step is X' = a s (Y + (b/a) s^2 (A + (c/b) s^2 A A) Y), where A = Y Y^T. The
// factor a s stays outside, so each sum is one op.
void NewtonSchulz::run(device::View x, int64_t rows, int64_t columns, int64_t steps,
                       device::Queue& queue) const {
  const bool tall = rows > columns;
  const int64_t side = tall ? columns : rows, other = tall ? rows : columns;
  const device::View product = product_.view(device::DType::f32).slice(0, rows * columns),
                     square = square_.view(device::DType::f32).slice(0, side * side),
                     fourth = fourth_.view(device::DType::f32).slice(0, side * side);
  kernels::run(kernels::L2NormalizeForward{.y = x, .x = x, .rows = 1, .width = rows * columns},
               queue);
  double scale = 1;
  for (int64_t step = 0; step < steps; ++step) {
    kernels::run(kernels::Gemm{.c = square,
                               .a = x,
                               .b = x,
                               .m = side,
                               .n = side,
                               .k = other,
                               .trans_a = tall,
                               .trans_b = !tall},
                 queue);
    kernels::run(
        kernels::Gemm{.c = fourth, .a = square, .b = square, .m = side, .n = side, .k = side},
        queue);
    kernels::run(
        kernels::Add{
            .y = square, .a = square, .b = fourth, .scale = float(kC / kB * scale * scale)},
        queue);
    kernels::run(kernels::Gemm{.c = product,
                               .a = tall ? x : square,
                               .b = tall ? square : x,
                               .m = rows,
                               .n = columns,
                               .k = side},
                 queue);
    kernels::run(
        kernels::Add{.y = x, .a = x, .b = product, .scale = float(kB / kA * scale * scale)}, queue);
    scale *= kA;
  }
}

}  // namespace optim
