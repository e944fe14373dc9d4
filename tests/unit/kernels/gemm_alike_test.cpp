// SPDX-License-Identifier: Apache-2.0
// Tests products on a queue whose rows are alike. A row must have the same bits among any number of
// other rows and at any place.
#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"
#include "narrow_type.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

struct AlikeCase {
  int64_t n, k;
  bool narrow = false, narrow_c = false, trans_b = false, bias = false, residual = false,
       accumulate = false, gelu = false;
  int64_t pad = 0;  // leading dimensions minus row lengths
};

constexpr int64_t kRows = 461;  // of the longest product; prime

// All rows of the operands of a case.
struct AlikeRows {
  const AlikeCase& s;
  int64_t lda, ldc;
  std::vector<float> a, b, bias, residual, before;
  std::vector<uint16_t> a16, b16, bias16, before16;

  explicit AlikeRows(const AlikeCase& of)
      : s(of),
        lda(s.k + s.pad),
        ldc(s.n + s.pad),
        a(normals(kRows * lda, "a")),
        b(normals(s.k * s.n, "b")),
        bias(normals(s.n, "bias")),
        residual(normals(kRows * s.n, "residual")),
        before(normals(kRows * ldc, "c")),
        a16(narrowed(a)),
        b16(narrowed(b)),
        bias16(narrowed(bias)),
        before16(narrowed(before)) {}

  // Returns the bytes of rows [first, first + m) of c and of GELU, from a product of these rows.
  std::string rows(int64_t first, int64_t m, Queue& queue) {
    std::vector<float> c(before.begin() + first * ldc, before.begin() + (first + m) * ldc),
        gelu(size_t(m * s.n));
    std::vector<uint16_t> c16(before16.begin() + first * ldc, before16.begin() + (first + m) * ldc),
        gelu16(gelu.size());
    Gemm g{.c = s.narrow_c ? narrow_view(c16) : device::view(c.data(), m * ldc),
           .a = s.narrow ? narrow_view(a16).slice(first * lda, m * lda)
                         : device::view(a.data() + first * lda, m * lda),
           .b = s.narrow ? narrow_view(b16) : device::view(b.data(), s.k * s.n),
           .m = m,
           .n = s.n,
           .k = s.k,
           .trans_b = s.trans_b,
           .lda = lda,
           .ldc = ldc};
    if (s.bias) g.bias = s.narrow_c ? narrow_view(bias16) : device::view(bias.data(), s.n);
    if (s.residual) g.residual = device::view(residual.data() + first * s.n, m * s.n);
    if (s.accumulate) g.write = Write::accumulate;
    if (s.gelu) g.gelu = s.narrow_c ? narrow_view(gelu16) : device::view(gelu.data(), m * s.n);
    run(g, queue);
    std::string bytes;
    auto add = [&](const auto& of) {
      bytes.append(reinterpret_cast<const char*>(of.data()), of.size() * sizeof of[0]);
    };
    add(s.narrow_c ? c16 : std::vector<uint16_t>{});
    add(s.narrow_c ? std::vector<float>{} : c);
    if (s.gelu) s.narrow_c ? add(gelu16) : add(gelu);
    return bytes;
  }
};

void check_alike(const AlikeCase& s, int threads, bool fixed) {
  SCOPED_TRACE(
      fmt::format("n {} k {} narrow {} narrow c {} trans b {} bias {} residual {} "
                  "accumulate {} gelu {} pad {}, {} threads, fixed {}",
                  s.n, s.k, s.narrow, s.narrow_c, s.trans_b, s.bias, s.residual, s.accumulate,
                  s.gelu, s.pad, threads, fixed));
  Queue queue(device::Kind::cpu, threads, fixed);
  const Queue::RowsAlike alike(queue);
  AlikeRows operands(s);
  const std::string all = operands.rows(0, kRows, queue);
  const size_t row = size_t(operands.ldc) * (s.narrow_c ? 2 : 4),
               gelu_row = size_t(s.n) * (s.narrow_c ? 2 : 4);
  for (int64_t m : {1,  2,  3,  4,  5,   6,   7,   8,   13,  16,  17,  32,  33,  49,
                    63, 64, 65, 96, 127, 143, 144, 145, 160, 191, 287, 288, 300, 432}) {
    const int64_t first = (m * 37) % (kRows - m);
    const std::string some = operands.rows(first, m, queue);
    std::string want = all.substr(size_t(first) * row, size_t(m) * row);
    if (s.gelu) want += all.substr(kRows * row + size_t(first) * gelu_row, size_t(m) * gelu_row);
    EXPECT_TRUE(some == want) << m << " rows from row " << first;
  }
}

TEST(GemmAlike, RowsDoNotDependOnTheirNumber) {
  if (on_cuda()) GTEST_SKIP() << "rows are alike on CPUs alone";
  for (bool emulated : bf16_ways()) {
    seams::force_bf16_emulation(emulated);
    for (int64_t n : {64, 128, 1000, 1024})
      for (int64_t k : {48, 128, 512}) {
        check_alike({n, k}, 1, false);
        check_alike({n, k}, 1, true);
      }
    for (bool narrow : {false, true})
      for (int threads : thread_counts({1, 2, 3})) {
        // Blocks have 144, 96 or 48 rows, and many steps of k.
        check_alike({.n = 96, .k = 1536, .narrow = narrow, .bias = true, .residual = true}, threads,
                    false);
        check_alike(
            {.n = 384, .k = 96, .narrow = narrow, .narrow_c = narrow, .bias = true, .gelu = true},
            threads, false);
        check_alike({.n = 112, .k = 384, .narrow = narrow, .bias = true, .residual = true}, threads,
                    false);
        check_alike({.n = 112, .k = 384, .narrow = narrow, .accumulate = true, .pad = 24}, threads,
                    true);
        check_alike({.n = 112, .k = 384, .narrow = narrow, .trans_b = true}, threads, false);
        check_alike({.n = 37, .k = 50, .narrow = narrow, .bias = true}, threads, false);
        check_alike(
            {.n = 96, .k = 200, .narrow = narrow, .narrow_c = narrow, .bias = true, .pad = 8},
            threads, false);
      }
  }
  seams::force_bf16_emulation(false);
}

// The results equal those of a plain queue up to rounding.
TEST(GemmAlike, IsTheProduct) {
  if (on_cuda()) GTEST_SKIP() << "rows are alike on CPUs alone";
  const int64_t m = 150, n = 40, k = 70;
  Tensor a(normals(m * k, "a")), b(normals(k * n, "b")), plain(m * n), alike(m * n);
  Queue queue(device::Kind::cpu, 1);
  run(Gemm{.c = plain, .a = a, .b = b, .m = m, .n = n, .k = k}, queue);
  {
    const Queue::RowsAlike scope(queue);
    run(Gemm{.c = alike, .a = a, .b = b, .m = m, .n = n, .k = k}, queue);
  }
  EXPECT_FALSE(queue.rows_alike());
  for (size_t i = 0; i < plain.values().size(); ++i)
    EXPECT_NEAR(plain.values()[i], alike.values()[i], 1e-5);
}

}  // namespace
