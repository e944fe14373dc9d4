// Products of bfloat16 operands, on bf16 instructions where the CPU has them and widened to f32.
#include "kernels/bf16_value.hpp"
#include "kernels/gemm.hpp"
#include "rig.hpp"

namespace {

using namespace kernels;
using namespace rig;

struct NarrowCase {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false, bias = false, residual = false, accumulate = false, narrow_c = false;
  int64_t pad = 0;  // leading dimensions minus row lengths
  std::string name() const {
    return fmt::format("m{} n{} k{} ta{} tb{} bias{} residual{} accumulate{} narrow c{} pad {}", m, n, k, trans_a,
                       trans_b, bias, residual, accumulate, narrow_c, pad);
  }
};

std::vector<uint16_t> narrowed(const std::vector<float>& x) {
  std::vector<uint16_t> y;
  for (float v : x) y.push_back(loops::round_to_bf16(v).bits);
  return y;
}
double value(uint16_t bits) { return double(loops::to_float(loops::Bf16{bits})); }
View narrow_view(std::vector<uint16_t>& v) { return {v.data(), device::DType::bf16, int64_t(v.size())}; }

// Runs a case; returns c with its padding, widened.
std::vector<float> run_narrow(const NarrowCase& s, TestQueue& queue, bool compare) {
  int64_t a_rows = s.trans_a ? s.k : s.m, b_rows = s.trans_b ? s.n : s.k;
  int64_t lda = (s.trans_a ? s.m : s.k) + s.pad, ldb = (s.trans_b ? s.k : s.n) + s.pad, ldc = s.n + s.pad;
  std::vector<uint16_t> a = narrowed(normals(a_rows * lda, "a")), b = narrowed(normals(b_rows * ldb, "b"));
  Tensor bias(normals(s.n, "bias")), residual(normals(s.m * s.n, "residual"));
  std::vector<float> before = normals(s.m * ldc, "c");
  if (!s.accumulate)
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) before[size_t(i * ldc + j)] = NAN;
  Tensor wide(before, 1);
  std::vector<uint16_t> narrow = narrowed(before);
  Gemm g{.c = s.narrow_c ? narrow_view(narrow) : wide.view(),
         .a = narrow_view(a),
         .b = narrow_view(b),
         .m = s.m,
         .n = s.n,
         .k = s.k,
         .trans_a = s.trans_a,
         .trans_b = s.trans_b};
  if (s.bias) g.bias = bias;
  if (s.residual) g.residual = residual;
  if (s.accumulate) g.write = Write::accumulate;
  if (s.pad) g.lda = lda, g.ldb = ldb, g.ldc = ldc;
  run(g, queue);
  std::vector<float> c = wide.values();
  if (s.narrow_c)
    for (size_t i = 0; i < c.size(); ++i) c[i] = loops::to_float(loops::Bf16{narrow[i]});
  if (!compare) return c;

  std::vector<double> expected;
  for (float v : before) expected.push_back(s.narrow_c ? value(loops::round_to_bf16(v).bits) : double(v));
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      double& sum = expected[size_t(i * ldc + j)];
      if (!s.accumulate) sum = 0;
      for (int64_t t = 0; t < s.k; ++t)
        sum += value(a[size_t(s.trans_a ? t * lda + i : i * lda + t)]) *
               value(b[size_t(s.trans_b ? j * ldb + t : t * ldb + j)]);
      if (s.bias) sum += double(bias[j]);
      if (s.residual) sum += double(residual[i * s.n + j]);
    }
  expect_close(c, expected, s.narrow_c ? 0x1p-8 : 1e-6, s.name());
  return c;
}

std::vector<NarrowCase> narrow_cases() {
  std::vector<NarrowCase> cases;
  const int64_t shapes[][3] = {{1, 1, 1},    {1, 5, 3},    {7, 5, 1},     {64, 1, 33},
                               {17, 31, 13}, {64, 48, 32}, {130, 33, 65}, {33, 770, 17}};
  for (auto [m, n, k] : shapes)
    for (int flags = 0; flags < 4; ++flags) {
      NarrowCase s{m, n, k, (flags & 1) != 0, (flags & 2) != 0};
      cases.push_back(s);
      s.accumulate = true, cases.push_back(s), s.accumulate = false;
      s.narrow_c = true, cases.push_back(s);
      s.bias = true, cases.push_back(s);
      s.residual = true, cases.push_back(s);
      s.narrow_c = false, cases.push_back(s);
      s.residual = s.bias = false, s.pad = 6, cases.push_back(s);
      s.narrow_c = true, cases.push_back(s);
    }
  return cases;
}

// On bf16 instructions, if there are any, and widened.
template <class F>
void both_ways(const F& body) {
  if (bf16_is_native()) {
    SCOPED_TRACE("bf16 instructions");
    body();
  }
  SCOPED_TRACE("widened");
  force_bf16_emulation(true);
  EXPECT_FALSE(bf16_is_native());
  body();
  force_bf16_emulation(false);
}

TEST(GemmBf16, AgreesWithReference) {
  both_ways([] {
    for (int threads : {1, 2})
      for (bool fixed_order : {false, true}) {
        TestQueue queue(threads, fixed_order);
        for (const NarrowCase& s : narrow_cases()) run_narrow(s, queue, true), run_narrow(s, queue, true);
      }
  });
}

TEST(GemmBf16, FixedOrderGivesTheSameBitsForAllThreads) {
  both_ways([] {
    for (int flags = 0; flags < 8; ++flags) {
      NarrowCase s{300, 900, 40, (flags & 1) != 0, (flags & 2) != 0};
      s.accumulate = (flags & 4) != 0, s.narrow_c = !s.accumulate;
      expect_same_bits([&](TestQueue& queue) { return run_narrow(s, queue, false); }, true);
    }
  });
}

TEST(GemmBf16, EmptySums) {
  both_ways([] {
    TestQueue queue;
    run_narrow({3, 4, 0, false, false, true, true}, queue, true);
    run_narrow({.m = 3, .n = 4, .k = 0, .bias = true, .narrow_c = true}, queue, true);
    run_narrow({.m = 3, .n = 4, .k = 0, .accumulate = true}, queue, true);
  });
}

TEST(GemmBf16, Checks) {
  std::vector<uint16_t> a(6), b(12), c(8);
  Tensor wide(12);
  Gemm g{.c = narrow_view(c), .a = narrow_view(a), .b = narrow_view(b), .m = 2, .n = 4, .k = 3};
  check(g);
  EXPECT_EQ(cost(g).bytes, 2 * (6 + 12 + 8));
  Gemm adds = g, mixed = g;
  adds.write = Write::accumulate;
  EXPECT_ERROR(check(adds), "sums are kept in f32");
  mixed.b = wide;
  EXPECT_ERROR(check(mixed), "b holds f32, not bf16");
}

}  // namespace
