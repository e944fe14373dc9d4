// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm.hpp"

#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "kernels/cpu/parallel.hpp"
#include "rig.hpp"

COVERS(gemm);
COVERS(column_sum);

namespace {

using namespace kernels;
using namespace rig;

// For sums of k products of normals: the error of float32 summation in any order, relative to the
// largest result.
constexpr double kTolerance = 1e-6;

struct Case {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false, bias = false, residual = false, accumulate = false;
  int64_t pad_a = 0, pad_b = 0, pad_c = 0;  // leading dimension minus row length

  int64_t a_rows() const { return trans_a ? k : m; }
  int64_t b_rows() const { return trans_b ? n : k; }
  int64_t lda() const { return (trans_a ? m : k) + pad_a; }
  int64_t ldb() const { return (trans_b ? k : n) + pad_b; }
  int64_t ldc() const { return n + pad_c; }
  std::string name() const {
    return fmt::format("m{} n{} k{} ta{} tb{} bias{} residual{} accumulate{} pads {} {} {}", m, n,
                       k, trans_a, trans_b, bias, residual, accumulate, pad_a, pad_b, pad_c);
  }
};

// Runs a case; returns c with its padding.
std::vector<float> run_case(const Case& s, TestQueue& queue, bool compare) {
  Tensor a(normals(s.a_rows() * s.lda(), "a"), 3), b(normals(s.b_rows() * s.ldb(), "b"), 5);
  Tensor bias(normals(s.n, "bias")), residual(normals(s.m * s.n, "residual"));
  std::vector<float> before = normals(s.m * s.ldc(), "c");
  if (!s.accumulate)
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) before[size_t(i * s.ldc() + j)] = NAN;
  Tensor c(before, 1);
  Gemm g{.c = c,
         .a = a,
         .b = b,
         .m = s.m,
         .n = s.n,
         .k = s.k,
         .trans_a = s.trans_a,
         .trans_b = s.trans_b};
  if (s.bias) g.bias = bias;
  if (s.residual) g.residual = residual;
  if (s.accumulate) g.write = Write::accumulate;
  g.lda = s.pad_a ? s.lda() : 0;
  g.ldb = s.pad_b ? s.ldb() : 0;
  g.ldc = s.pad_c ? s.ldc() : 0;
  run(g, queue);

  if (compare) {
    std::vector<double> expected = doubles(before);
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) {
        double sum = s.accumulate ? double(before[size_t(i * s.ldc() + j)]) : 0;
        for (int64_t t = 0; t < s.k; ++t)
          sum += double(a[s.trans_a ? t * s.lda() + i : i * s.lda() + t]) *
                 double(b[s.trans_b ? j * s.ldb() + t : t * s.ldb() + j]);
        if (s.bias) sum += double(bias[j]);
        if (s.residual) sum += double(residual[i * s.n + j]);
        expected[size_t(i * s.ldc() + j)] = sum;
      }
    expect_close(c.values(), expected, kTolerance, s.name());
  }
  return c.values();
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const int64_t shapes[][3] = {{1, 1, 1},    {1, 1, 7},    {1, 5, 3},     {5, 1, 3},
                               {7, 5, 1},    {1, 64, 33},  {64, 1, 33},   {17, 31, 13},
                               {64, 48, 32}, {3, 200, 5},  {130, 33, 65}, {33, 770, 17},
                               {1, 1024, 9}, {35, 1024, 9}};
  for (auto [m, n, k] : shapes)
    for (int flags = 0; flags < 4; ++flags) {
      Case s{m, n, k, (flags & 1) != 0, (flags & 2) != 0};
      cases.push_back(s);
      s.accumulate = true;
      cases.push_back(s);
      s.accumulate = false;
      s.bias = true;
      cases.push_back(s);
      s.residual = true;
      cases.push_back(s);
      s.bias = false;
      cases.push_back(s);
    }
  // Leading dimensions that are wider than the rows, also of a single row or column.
  const int64_t wide[][3] = {{37, 29, 41}, {1, 5, 3}, {5, 1, 3}, {64, 1, 33}, {7, 5, 1}};
  for (int which = 0; which < 5 * 16; ++which) {
    const int flags = which / 4 % 4, extra = which % 4;
    const auto [m, n, k] = wide[which / 16];
    Case s{m, n, k, (flags & 1) != 0, (flags & 2) != 0};
    s.pad_a = 3;
    s.pad_b = 11;
    s.pad_c = 5;
    s.bias = extra == 1 || extra == 3;
    s.residual = extra >= 2;
    cases.push_back(s);
    if (extra == 0) {
      s.accumulate = true;
      cases.push_back(s);
    }
  }
  return cases;
}

TEST(Gemm, AgreesWithReference) {
  for (int threads : thread_counts({1, 2}))
    for (bool fixed_order : {false, true}) {
      TestQueue queue(threads, fixed_order);
      for (const Case& s : all_cases()) {
        SCOPED_TRACE(fmt::format("threads {} fixed {}", threads, fixed_order));
        run_case(s, queue, true);
        run_case(s, queue, true);  // the plan's second use
      }
    }
}

// Single columns with gaps are packed for oneDNN 3, here with any version.
TEST(Gemm, PackedColumnsAgreeWithReference) {
  if (on_cuda()) return;
  seams::force_packed_columns(true);
  TestQueue queue(2, false);
  for (const Case& s : all_cases())
    if (s.pad_c) run_case(s, queue, true);
  seams::force_packed_columns(false);
}

// The rows fill several blocks per thread, the last one shorter.
TEST(Gemm, ManyRowsAgreeWithReference) {
  for (int threads : thread_counts({1, 2, 3})) {
    TestQueue queue(threads);
    for (int flags = 0; flags < 4; ++flags)
      for (int64_t pad : {0, 3}) {
        Case s{1000, 70, 40, (flags & 1) != 0, (flags & 2) != 0};
        s.pad_a = s.pad_b = s.pad_c = pad;
        SCOPED_TRACE(fmt::format("threads {}", threads));
        s.bias = s.residual = true;
        run_case(s, queue, true);
        s.bias = s.residual = false;
        s.accumulate = true;
        run_case(s, queue, true);
      }
  }
}

// OpenMP ends the threads that a smaller team does not use. They have the program's signal masks
// and stacks.
TEST(Gemm, LessWorkThanThreadsLeavesTheThreadsAlone) {
  std::array<long, 4> before{}, after{};
  auto threads = [](std::array<long, 4>& ids) {
#pragma omp parallel num_threads(4)
    ids[size_t(omp_get_thread_num())] = syscall(SYS_gettid);
  };
  TestQueue queue(4, true);
  threads(before);
  Case s{256, 96, 40, false, false};  // two blocks
  run_case(s, queue, true);
  std::vector<float> wide(3 * 16384);  // three units of work
  for_ranges(queue, 3, 3 * 16384, 1, [&](int64_t i, int64_t end) { wide[size_t(i)] = float(end); });
  threads(after);
  EXPECT_EQ(before, after);
}

TEST(Gemm, FixedOrderGivesTheSameBitsForAllThreads) {
  // There are several blocks in both directions, with shorter last ones, and a long k, which the
  // library would split.
  for (auto [m, n, k] :
       {std::array<int64_t, 3>{300, 900, 40}, {131, 17, 2000}, {16, 1540, 64}, {260, 70, 100}})
    for (int flags = 0; flags < 8; ++flags) {
      Case s{m, n, k, (flags & 1) != 0, (flags & 2) != 0};
      s.accumulate = (flags & 4) != 0;
      s.bias = s.residual = !s.accumulate;
      SCOPED_TRACE(s.name());
      expect_same_bits([&](TestQueue& queue) { return run_case(s, queue, false); }, true);
    }
  TestQueue queue(3, true);
  run_case({300, 900, 40, true, false, true, true}, queue, true);
  run_case({131, 800, 70, false, true, false, false, true, 1, 2, 3}, queue, true);
}

TEST(Gemm, LeavesTheOpenMpThreadCountAlone) {
  TestQueue queue(3), fixed(3, true);
  int before = omp_get_max_threads();
  run_case({64, 48, 32}, queue, true);
  run_case({300, 48, 32}, fixed, true);
  EXPECT_EQ(omp_get_max_threads(), before);
}

TEST(Gemm, EmptySums) {
  TestQueue queue;
  run_case({3, 4, 0}, queue, true);
  run_case({3, 4, 0, false, false, true, true}, queue, true);
  run_case({3, 4, 0, true, false, false, false, true}, queue, true);
  run_case({0, 4, 5}, queue, true);
  run_case({4, 0, 5}, queue, true);
}

TEST(Gemm, CostAndChecks) {
  Tensor a(6), b(12), c(8), r(8);
  Gemm g{.c = c, .a = a, .b = b, .m = 2, .n = 4, .k = 3};
  EXPECT_EQ(cost(g).flops, 2 * 2 * 4 * 3);
  EXPECT_EQ(cost(g).bytes, 4 * (6 + 12 + 8));
  g.residual = r;
  EXPECT_EQ(cost(g).bytes, 4 * (6 + 12 + 8 + 8));
  Queue plan(Kind::plan);
  run(g, plan);
  EXPECT_EQ(plan.costs()[size_t(Op::gemm)].flops, 48);
  auto with = [&](auto change) {
    Gemm h = g;
    change(h);
    check(h);
  };
  check(g);
  EXPECT_ERROR(with([&](Gemm& h) { h.m = 3; }), "gemm", "c has 8 elements", "[3, 4]");
  EXPECT_ERROR(with([&](Gemm& h) {
                 h.trans_a = true;
                 h.lda = 1;
               }),
               "leading dimension of a is 1", "2 columns");
  EXPECT_ERROR(with([&](Gemm& h) { h.ldb = 5; }), "b has 12 elements", "needs 14");
  EXPECT_ERROR(with([&](Gemm& h) { h.b = {}; }), "gemm", "b has 0");
  EXPECT_ERROR(with([&](Gemm& h) { h.b.data = nullptr; }), "gemm", "b [3, 4] is missing");
  EXPECT_ERROR(with([&](Gemm& h) { h.a.type = device::DType::bf16; }), "b holds f32, not bf16");
  EXPECT_ERROR(with([&](Gemm& h) { h.bias = r; }), "bias has 8 elements");
  EXPECT_ERROR(with([&](Gemm& h) { h.write = Write::accumulate; }), "overwrite only");
  EXPECT_ERROR(with([&](Gemm& h) { h.k = -1; }), "k is -1");
  TestQueue queue;
  g.residual = c;
  EXPECT_ERROR(run(g, queue), "residual may not be c");
}

std::vector<float> run_column_sum(int64_t m, int64_t n, Write write, TestQueue& queue,
                                  bool compare) {
  Tensor x(normals(m * n, "x"), 1);
  std::vector<float> before =
      write == Write::overwrite ? std::vector<float>(size_t(n), NAN) : normals(n, "out");
  Tensor out(before, 3);
  ColumnSum s{.out = out, .x = x, .m = m, .n = n, .write = write};
  run(s, queue);
  if (compare) {
    std::vector<double> expected(static_cast<size_t>(n));
    double scale = 1;
    for (int64_t j = 0; j < n; ++j) {
      expected[size_t(j)] = write == Write::overwrite ? 0 : double(before[size_t(j)]);
      for (int64_t i = 0; i < m; ++i) expected[size_t(j)] += double(x[i * n + j]);
    }
    scale = std::sqrt(double(std::max<int64_t>(1, m)));  // deviation of a sum of m normals
    expect_close(out.values(), expected, 1e-6, fmt::format("column_sum {}x{}", m, n), scale);
  }
  return out.values();
}

TEST(ColumnSum, AgreesWithReference) {
  for (int threads : thread_counts({1, 2})) {
    TestQueue queue(threads);
    for (auto [m, n] : {std::pair<int64_t, int64_t>{0, 5},
                        {1, 1},
                        {1, 7},
                        {63, 3},
                        {64, 16},
                        {65, 33},
                        {200, 1},
                        {1000, 37},
                        {5000, 19},
                        {3, 0}})
      for (Write w : {Write::overwrite, Write::accumulate}) run_column_sum(m, n, w, queue, true);
  }
}

TEST(ColumnSum, SameBitsForAllThreads) {
  for (Write w : {Write::overwrite, Write::accumulate})
    expect_same_bits_for_all_threads(
        [&](TestQueue& queue) { return run_column_sum(5003, 77, w, queue, false); });
}

TEST(ColumnSum, CostAndChecks) {
  Tensor x(12), out(4);
  ColumnSum s{.out = out, .x = x, .m = 3, .n = 4};
  EXPECT_EQ(cost(s).flops, 12);
  EXPECT_EQ(cost(s).bytes, 4 * 16);
  s.m = 2;
  EXPECT_ERROR(check(s), "column_sum", "x has 12 elements", "[2, 4] = 8");
}

}  // namespace
