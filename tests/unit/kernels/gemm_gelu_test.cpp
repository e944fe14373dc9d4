// SPDX-License-Identifier: Apache-2.0
// Tests GELU and its derivative on the blocks of a product, against the ops on the whole.
#include "kernels/bf16_value.hpp"
#include "kernels/cast.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"
#include "rig.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

// A matrix in either type.
struct Matrix {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
  DType type;
  Matrix(const std::vector<float>& values, DType t) : wide(values), narrow(values.size()), type(t) {
    for (size_t i = 0; i < values.size(); ++i) narrow[i] = loops::round_to_bf16(values[i]).bits;
  }
  Matrix(int64_t count, DType t) : Matrix(std::vector<float>(size_t(count)), t) {}
  View view() {
    int64_t n = int64_t(wide.size());
    return type == DType::bf16 ? View{narrow.data(), DType::bf16, n} : device::view(wide.data(), n);
  }
  std::vector<float> values() const {
    if (type == DType::f32) return wide;
    std::vector<float> out(narrow.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = loops::to_float(loops::Bf16{narrow[i]});
    return out;
  }
  // Expects the same bits on the CPU. On a GPU the library chooses the order of sums, and GELU
  // reads values before their rounding.
  void expect_as(const Matrix& o, const char* what) const {
    if (on_cuda())
      expect_close(values(), doubles(o.values()), type == DType::bf16 ? 1.5e-2 : 1e-5, what);
    else
      EXPECT_TRUE(same_bits(values(), o.values())) << what;
  }
};

void compare(int64_t m, int64_t n, int64_t k, DType operands, DType result, bool fixed,
             int threads) {
  SCOPED_TRACE(fmt::format("{} x {} x {} {} to {}, fixed {}, {} threads", m, n, k,
                           device::name_of(operands), device::name_of(result), fixed, threads));
  TestQueue queue(threads, fixed), exact(1, true);
  Matrix a(normals(m * k, "a"), operands),
      b(normals(k * n, "b", 1 / std::sqrt(double(k))), operands);
  Matrix x(normals(m * n, "x"), result);
  Matrix bias(normals(n, "bias"), result);
  // A fixed order promises these bits. Without it the library may add in another order if c has
  // other blocks.
  Matrix plain(m * n, result), gelu(m * n, result), fused(m * n, result), fused_gelu(m * n, result);
  Gemm g{
      .c = plain.view(), .a = a.view(), .b = b.view(), .bias = bias.view(), .m = m, .n = n, .k = k};
  run(g, exact);
  g.c = fused.view();
  g.gelu = fused_gelu.view();
  run(g, queue);
  if (fixed)
    fused.expect_as(plain, "product");
  else
    expect_close(fused.values(), doubles(plain.values()), result == DType::bf16 ? 1.5e-2 : 1e-5,
                 "product");
  if (m > 0 && n > 0) run(GeluForward{.y = gelu.view(), .x = fused.view()}, exact);
  fused_gelu.expect_as(gelu, "gelu");
  if (!on_cuda()) {
    g.gelu = g.c;
    run(g, queue);
    fused.expect_as(gelu, "gelu in place");
  }

  // Runs the product alone, in the blocks of the product with a derivative.
  Gemm back{
      .c = plain.view(), .a = a.view(), .b = b.view(), .m = m, .n = n, .k = k, .gelu = gelu.view()};
  run(back, queue);
  if (m > 0 && n > 0)
    run(GeluBackward{.dx = plain.view(), .dy = plain.view(), .x = x.view()}, exact);
  back.c = fused.view();
  back.gelu = {};
  back.gelu_of = x.view();
  run(back, queue);
  fused.expect_as(plain, "gradient");
}

TEST(GemmGelu, IsTheOpOnTheResult) {
  for_each_table([] {
    for (bool emulated : bf16_ways()) {
      seams::force_bf16_emulation(emulated);
      for (auto [m, n, k] : {std::array<int64_t, 3>{200, 800, 33},
                             {5, 7, 3},
                             {130, 1536, 64},
                             {900, 200, 384},
                             {0, 4, 4},
                             {4, 4, 0}})
        for (auto [operands, result] : {std::pair{DType::f32, DType::f32},
                                        {DType::bf16, DType::bf16},
                                        {DType::bf16, DType::f32}})
          for (bool fixed : {false, true})
            for (int threads : thread_counts({1, 2}))
              compare(m, n, k, operands, result, fixed, threads);
    }
    seams::force_bf16_emulation(false);
  });
}

TEST(GemmGelu, Checks) {
  Tensor a(6), c(4), other(3);
  Gemm g{.c = c, .a = a, .b = a, .m = 2, .n = 2, .k = 3, .gelu = c};
  g.write = Write::accumulate;
  EXPECT_ERROR(check(g), "GELU go with overwrite only");
  g.write = Write::overwrite;
  g.gelu_of = other;
  EXPECT_ERROR(check(g), "gelu_of has 3 elements");
}

}  // namespace
