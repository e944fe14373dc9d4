// SPDX-License-Identifier: Apache-2.0
// Tests sums over the rows of a product's b: the gradient of a bias, computed with the gradient of
// its kernel.
#include "kernels/gemm.hpp"
#include "narrow_type.hpp"

namespace {

using namespace kernels;
using namespace rig;

// b is f32 or narrow; the narrow one is rounded from the same numbers.
void compare(int64_t m, int64_t n, int64_t k, bool narrow, Write write, bool in_one) {
  SCOPED_TRACE(fmt::format("[{}, {}] x [{}, {}], narrow {}, write {}, in one {}", m, k, k, n,
                           narrow, int(write), in_one));
  std::vector<float> x = normals(k * m, "a"), y = normals(k * n, "b");
  std::vector<uint16_t> narrow_x = narrowed(x), narrow_y = narrowed(y);
  Tensor a(x), b(y), c(normals(m * n, "c")), sums(normals(n, "sums"));
  const std::vector<float> before = sums.values(), c_before = c.values();
  Gemm product{.c = c,
               .a = narrow ? narrow_view(narrow_x) : a.view(),
               .b = narrow ? narrow_view(narrow_y) : b.view(),
               .m = m,
               .n = n,
               .k = k,
               .trans_a = true,
               .write = write};
  TestQueue queue(2);
  if (in_one) {
    product.sums = sums;
    run(product, queue);
  } else {
    run(product, queue);
    run(ColumnSum{.out = sums, .x = product.b, .m = k, .n = n, .write = write}, queue);
  }
  auto at = [&](const std::vector<float>& wide, const std::vector<uint16_t>& bits, int64_t i) {
    return narrow ? double(widened(bits[size_t(i)])) : double(wide[size_t(i)]);
  };
  const bool adds = write == Write::accumulate;
  std::vector<double> want_sums, want(size_t(m * n));
  for (int64_t j = 0; j < n; ++j) {
    double sum = adds ? double(before[size_t(j)]) : 0;
    for (int64_t t = 0; t < k; ++t) sum += at(y, narrow_y, t * n + j);
    want_sums.push_back(sum);
    for (int64_t i = 0; i < m; ++i) {
      double& of_c = want[size_t(i * n + j)];
      of_c = adds ? double(c_before[size_t(i * n + j)]) : 0;
      for (int64_t t = 0; t < k; ++t)
        of_c += at(x, narrow_x, t * m + i) * at(y, narrow_y, t * n + j);
    }
  }
  expect_close(sums.values(), want_sums, 1e-5, "sums");
  expect_close(c.values(), want, 1e-5, "product");
}

TEST(GemmSums, AreThoseOfTheOp) {
  for_each_narrow_type([] {
    for (auto [m, n, k] :
         {std::tuple{1, 1, 1}, {5, 3, 7}, {48, 40, 200}, {33, 770, 17}, {7, 5, 0}, {0, 5, 7}})
      for (bool narrow : {false, true})
        for (Write write : {Write::overwrite, Write::accumulate})
          for (bool in_one : {false, true}) compare(m, n, k, narrow, write, in_one);
  });
}

// This also holds where the library splits k and adds the parts in a buffer other than c.
TEST(GemmSums, TheSameBitsAgain) {
  constexpr int64_t kSmall = 64, kLong = 20'000;
  std::vector<uint16_t> x = narrowed(normals(kLong * kSmall, "a")),
                        y = narrowed(normals(kLong * kSmall, "b"));
  TestQueue queue(2);
  std::vector<float> first;
  for (int i = 0; i < (on_cuda() ? 20 : 2); ++i) {
    Tensor c(kSmall * kSmall), sums(kSmall);
    run(Gemm{.c = c,
             .a = narrow_view(x),
             .b = narrow_view(y),
             .m = kSmall,
             .n = kSmall,
             .k = kLong,
             .trans_a = true,
             .sums = sums},
        queue);
    if (i == 0) first = sums.values();
    EXPECT_TRUE(same_bits(sums.values(), first)) << i;
  }
}

TEST(GemmSums, CostAndChecks) {
  Tensor a(6), b(12), c(8), sums(4), bias(4);
  Gemm g{.c = c, .a = a, .b = b, .m = 2, .n = 4, .k = 3, .trans_a = true, .sums = sums};
  check(g);
  EXPECT_EQ(cost(g).flops, 2 * 2 * 4 * 3 + 3 * 4);
  EXPECT_EQ(cost(g).bytes, 4 * (6 + 12 + 8 + 4));
  auto with = [&](auto change) {
    Gemm h = g;
    change(h);
    check(h);
  };
  EXPECT_ERROR(with([&](Gemm& h) { h.bias = bias; }), "gemm", "sums go with");
  EXPECT_ERROR(with([&](Gemm& h) { h.trans_b = true; }), "gemm", "sums go with");
  EXPECT_ERROR(with([&](Gemm& h) { h.sums = c; }), "sums has 8 elements", "[4]");
  TestQueue queue;
  g.sums = {};
  EXPECT_ERROR(run_with_sums(g, {.out = sums, .x = c, .m = 3, .n = 4}, queue),
               "sums.x must be b of the product");
}

}  // namespace
