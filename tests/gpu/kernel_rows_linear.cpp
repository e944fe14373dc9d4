// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "kernels/gemm.hpp"
#include "row_list.hpp"

namespace gpu_check {

using kernels::ColumnSum;
using kernels::Gemm;

void add_linear(std::vector<Row>& rows, const char* what, int64_t m, int64_t in, int64_t out,
                double layers, const Epilogue& epilogue) {
  auto shape = [&](int64_t a, int64_t b, int64_t c, const std::string& which) {
    return fmt::format("{} {}: {} x {} x {}", what, which, a, b, c);
  };
  const Epilogue e = epilogue;
  const device::DType result = e.wide || e.residual ? kWide : kNarrow;
  auto forward = [=](Memory& t) {
    return Gemm{.c = t.zeros(m * out, result),
                .a = t.normals(m * in, kNarrow),
                .b = t.normals(in * out, kNarrow),
                .bias = e.bias ? t.normals(out, result) : device::View{},
                .m = m,
                .n = out,
                .k = in};
  };
  const bool has_more = e.gelu || e.residual;
  // Rows without calls show what an epilogue costs.
  add(rows, shape(m, out, in, "forward"), has_more ? 0 : layers, forward);
  if (has_more)
    add(rows, shape(m, out, in, e.gelu ? "forward, GELU" : "forward, residual"), layers,
        [=](Memory& t) {
          Gemm more = forward(t);
          if (e.gelu) more.gelu = t.zeros(m * out, result);
          if (e.residual) more.residual = t.normals(m * out, kWide);
          return more;
        });
  auto dx = [=](Memory& t) {
    return Gemm{.c = t.zeros(m * in, kNarrow),
                .a = t.normals(m * out, kNarrow),
                .b = t.normals(in * out, kNarrow),
                .m = m,
                .n = in,
                .k = out,
                .trans_b = true};
  };
  const bool plain_dx = !e.gelu_of && !e.accumulate;
  add(rows, shape(m, in, out, "dx"), plain_dx ? layers : 0, dx);
  if (!plain_dx)
    add(rows, shape(m, in, out, e.gelu_of ? "dx, GELU'" : "dx, added"), layers, [=](Memory& t) {
      Gemm more = dx(t);
      if (e.gelu_of) more.gelu_of = t.normals(m * in, kNarrow);
      if (e.accumulate) more.write = kernels::Write::accumulate;
      return more;
    });
  auto dw = [=](Memory& t) {
    return Gemm{.c = t.zeros(in * out, kWide),
                .a = t.normals(m * in, kNarrow),
                .b = t.normals(m * out, kNarrow),
                .m = in,
                .n = out,
                .k = m,
                .trans_a = true};
  };
  add(rows, shape(in, out, m, "dw"), layers, dw);
  if (!e.bias) return;
  // A step makes this call instead of the rows above and below if a search finds it faster.
  add(rows, shape(in, out, m, "dw and sums"), 0, [=](Memory& t) {
    Gemm both = dw(t);
    both.sums = t.zeros(out, kWide);
    return both;
  });
  // If the gradient also passes a residual, the norm computes these sums.
  add(rows, fmt::format("{}: {} x {}", what, m, out), e.residual ? 0 : layers, [=](Memory& t) {
    return ColumnSum{
        .out = t.zeros(out, kWide), .x = t.normals(m * out, kNarrow), .m = m, .n = out};
  });
}

}  // namespace gpu_check
