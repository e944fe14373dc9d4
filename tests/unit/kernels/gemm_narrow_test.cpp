// SPDX-License-Identifier: Apache-2.0
// Tests products of bfloat16 operands, on bf16 instructions where the CPU has them and widened to
// f32, and of binary16 on CUDA.
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"
#include "narrow_type.hpp"

namespace {

using namespace kernels;
using namespace rig;

struct NarrowCase {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false, bias = false, residual = false, accumulate = false,
       narrow_c = false;
  int64_t pad = 0;  // leading dimensions minus row lengths
  std::string name() const {
    return fmt::format("m{} n{} k{} ta{} tb{} bias{} residual{} accumulate{} narrow c{} pad {}", m,
                       n, k, trans_a, trans_b, bias, residual, accumulate, narrow_c, pad);
  }
};

double value(uint16_t bits) { return double(widened(bits)); }

// Runs a case; returns c with its padding, widened.
std::vector<float> run_narrow(const NarrowCase& s, TestQueue& queue, bool compare) {
  int64_t a_rows = s.trans_a ? s.k : s.m, b_rows = s.trans_b ? s.n : s.k;
  int64_t lda = (s.trans_a ? s.m : s.k) + s.pad, ldb = (s.trans_b ? s.k : s.n) + s.pad,
          ldc = s.n + s.pad;
  std::vector<uint16_t> a = narrowed(normals(a_rows * lda, "a")),
                        b = narrowed(normals(b_rows * ldb, "b"));
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
  std::vector<uint16_t> narrow_bias = narrowed(bias.values());
  if (s.bias) g.bias = s.narrow_c ? narrow_view(narrow_bias) : bias.view();
  if (s.residual) g.residual = residual;
  if (s.accumulate) g.write = Write::accumulate;
  if (s.pad) {
    g.lda = lda;
    g.ldb = ldb;
    g.ldc = ldc;
  }
  run(g, queue);
  std::vector<float> c = wide.values();
  if (s.narrow_c)
    for (size_t i = 0; i < c.size(); ++i) c[i] = widened(narrow[i]);
  if (!compare) return c;

  // Of each case and type only once: it depends on neither threads nor ways to compute.
  static std::map<std::string, std::vector<double>> references;
  std::vector<double>& expected = references[device::name_of(narrow_type()) + s.name()];
  const double tolerance = s.narrow_c ? 0x1p-8 * narrow_part() : 1e-6;
  if (!expected.empty()) {
    expect_close(c, expected, tolerance, s.name());
    return c;
  }
  for (float v : before) expected.push_back(s.narrow_c ? value(narrowed(v)) : double(v));
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      double& sum = expected[size_t(i * ldc + j)];
      if (!s.accumulate) sum = 0;
      for (int64_t t = 0; t < s.k; ++t)
        sum += value(a[size_t(s.trans_a ? t * lda + i : i * lda + t)]) *
               value(b[size_t(s.trans_b ? j * ldb + t : t * ldb + j)]);
      if (s.bias) sum += s.narrow_c ? value(narrow_bias[size_t(j)]) : double(bias[j]);
      if (s.residual) sum += double(residual[i * s.n + j]);
    }
  expect_close(c, expected, tolerance, s.name());
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
      s.accumulate = true;
      cases.push_back(s);
      s.accumulate = false;
      s.narrow_c = true;
      cases.push_back(s);
      s.bias = true;
      cases.push_back(s);
      s.residual = true;
      cases.push_back(s);
      s.narrow_c = false;
      cases.push_back(s);
      s.residual = s.bias = false;
      s.pad = 6;
      cases.push_back(s);
      s.narrow_c = true;
      cases.push_back(s);
      s.accumulate = true;
      cases.push_back(s);
      s.pad = 0;
      cases.push_back(s);
    }
  return cases;
}

// Runs the test on bf16 instructions, if there are any, and widened.
template <class F>
void both_ways(const F& body) {
  if (bf16_is_native() && !on_cuda()) {
    SCOPED_TRACE("bf16 instructions");
    body();
  }
  SCOPED_TRACE("widened");
  seams::force_bf16_emulation(true);
  EXPECT_FALSE(bf16_is_native());
  for_each_narrow_type(body);
  seams::force_bf16_emulation(false);
}

TEST(GemmNarrow, AgreesWithReference) {
  both_ways([] {
    for (int threads : thread_counts({1, 2}))
      for (bool fixed_order : {false, true}) {
        TestQueue queue(threads, fixed_order);
        for (const NarrowCase& s : narrow_cases()) {
          run_narrow(s, queue, true);
          run_narrow(s, queue, true);
        }
      }
  });
}

TEST(GemmNarrow, FixedOrderGivesTheSameBitsForAllThreads) {
  both_ways([] {
    for (int flags = 0; flags < 8; ++flags) {
      NarrowCase s{300, 900, 40, (flags & 1) != 0, (flags & 2) != 0};
      s.accumulate = (flags & 4) != 0;
      s.narrow_c = (flags & 2) == 0;
      expect_same_bits([&](TestQueue& queue) { return run_narrow(s, queue, false); }, true);
    }
  });
}

TEST(GemmNarrow, EmptySums) {
  both_ways([] {
    TestQueue queue;
    run_narrow({3, 4, 0, false, false, true, true}, queue, true);
    run_narrow({.m = 3, .n = 4, .k = 0, .bias = true, .narrow_c = true}, queue, true);
    run_narrow({.m = 3, .n = 4, .k = 0, .accumulate = true}, queue, true);
    run_narrow({.m = 3, .n = 4, .k = 0, .accumulate = true, .narrow_c = true}, queue, true);
  });
}

TEST(GemmNarrow, Checks) {
  std::vector<uint16_t> a(6), b(12), c(8);
  Tensor wide(12);
  Gemm g{.c = narrow_view(c), .a = narrow_view(a), .b = narrow_view(b), .m = 2, .n = 4, .k = 3};
  check(g);
  EXPECT_EQ(cost(g).bytes, 2 * (6 + 12 + 8));
  Tensor bias(4);
  Gemm with_bias = g;
  with_bias.bias = bias;
  EXPECT_ERROR(check(with_bias), "bias holds f32, not bf16");
  Gemm adds = g, mixed = g;
  adds.write = Write::accumulate;
  check(adds);
  EXPECT_EQ(cost(adds).bytes, 2 * (6 + 12 + 2 * 8));
  mixed.b = wide;
  EXPECT_ERROR(check(mixed), "b holds f32, not bf16");
  mixed = g;
  mixed.b.type = device::DType::f16;
  EXPECT_ERROR(check(mixed), "b holds f16, not bf16");
  mixed.a.type = device::DType::f16;
  EXPECT_ERROR(check(mixed), "c holds bf16, not f32");
}

// An op must refuse a type that it cannot compute with.
TEST(GemmNarrow, BinaryOf16BitsIsForGpus) {
  if (on_cuda()) return;
  std::vector<uint16_t> a(6), b(12), c(8);
  const device::DType f16 = device::DType::f16;
  TestQueue queue;
  EXPECT_ERROR(run(Gemm{.c = {c.data(), f16, 8},
                        .a = {a.data(), f16, 6},
                        .b = {b.data(), f16, 12},
                        .m = 2,
                        .n = 4,
                        .k = 3},
                   queue),
               "gemm: products of f16 are for GPUs");
  EXPECT_ERROR(run(GeluForward{.y = {a.data(), f16, 6}, .x = {b.data(), f16, 6}}, queue),
               "only GPUs have activations of f16");
}

// With tf32 in the queue, f32 operands are rounded to tf32. Products of numbers with few bits
// differ only because tensor cores truncate their sums, and others by the error of 10 bits of
// mantissa. The test covers every form of a product, whose GELU may use a tanh with an error of 11
// bits.
TEST(GemmNarrow, Tf32) {
  if (!on_cuda()) return;
  TestQueue exact, fast;
  fast.set_tf32(true);
  constexpr int64_t m = 24, n = 40, k = 48;
  auto product = [&](const std::vector<float>& x, const std::vector<float>& y, TestQueue& queue,
                     bool fused) {
    Tensor a(x), b(y), bias(normals(n, "bias")), residual(normals(m * n, "residual")),
        c(normals(m * n, "c")), gelu(m * n);
    Gemm g{.c = c, .a = a, .b = b, .m = m, .n = n, .k = k};
    if (fused) {
      g.bias = bias;
      g.gelu = gelu;
      g.residual = residual;
    } else
      g.write = Write::accumulate;
    run(g, queue);
    std::vector<float> all = c.values();
    if (fused)
      for (float v : gelu.values()) all.push_back(v);
    return all;
  };
  std::vector<float> a = normals(m * k, "a"), b = normals(k * n, "b");
  auto short_of = [](std::vector<float> v) {
    for (float& x : v) x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & ~0x1FFFu);
    return v;
  };
  for (bool fused : {false, true}) {
    std::vector<float> same = product(short_of(a), short_of(b), exact, fused),
                       rounded = product(short_of(a), short_of(b), fast, fused);
    expect_close(rounded, doubles(same), fused ? 1e-3 : 2e-6, "few bits");
    same.resize(m * n);
    rounded.resize(m * n);
    expect_close(rounded, doubles(same), 2e-6, "few bits, without GELU");
    const std::vector<float> want = product(a, b, exact, fused), got = product(a, b, fast, fused);
    EXPECT_NE(want, got);
    expect_close(got, doubles(want), 1e-3, "tf32");
  }
  run_narrow({m, n, k}, fast, true);  // tf32 does not change narrow products
}

}  // namespace
