// SPDX-License-Identifier: Apache-2.0
// Tests products of few rows against plain loops in double: bias, residual, narrow types, and bits
// that depend neither on the number of rows nor on threads.
#include "kernels/row_product.hpp"

#include "narrow_type.hpp"

COVERS(row_product);

namespace {

using namespace kernels;
using namespace rig;

struct ProductSizes {
  int64_t m, n, k;
};
const ProductSizes kProductSizes[] = {{1, 1, 1},     {1, 48, 40},  {3, 61, 20},    {8, 130, 33},
                                      {33, 200, 70}, {70, 37, 24}, {2, 2100, 192}, {0, 4, 3}};

std::vector<double> product_of(const ProductSizes& s, const std::vector<float>& a,
                               const std::vector<float>& b, const std::vector<float>& bias,
                               const std::vector<float>& residual) {
  std::vector<double> c(size_t(s.m * s.n));
  for (int64_t r = 0; r < s.m; ++r)
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < s.k; ++i)
        sum += double(a[size_t(r * s.k + i)]) * double(b[size_t(i * s.n + j)]);
      if (!bias.empty()) sum += double(bias[size_t(j)]);
      if (!residual.empty()) sum += double(residual[size_t(r * s.n + j)]);
      c[size_t(r * s.n + j)] = sum;
    }
  return c;
}

TEST(RowProduct, IsTheProduct) {
  for (const ProductSizes& s : kProductSizes)
    for (bool extras : {false, true})
      for_each_table([&] {
        SCOPED_TRACE(fmt::format("{} x {} x {}, extras {}", s.m, s.n, s.k, extras));
        const auto a = normals(s.m * s.k, "a"), b = normals(s.k * s.n, "b"),
                   bias = normals(extras ? s.n : 0, "bias"),
                   residual = normals(extras ? s.m * s.n : 0, "residual");
        // The residual may be c itself.
        Tensor c(extras ? residual : std::vector<float>(size_t(s.m * s.n)), 1), x(a, 1), w(b, 3),
            z(bias, 2);
        TestQueue queue(2);
        run(RowProduct{.c = c,
                       .a = x,
                       .b = w,
                       .bias = extras ? z.view() : View{},
                       .residual = extras ? c.view() : View{},
                       .m = s.m,
                       .n = s.n,
                       .k = s.k},
            queue);
        expect_close(c.values(), product_of(s, a, b, bias, residual), 2e-6, "c");
      });
}

TEST(RowProduct, ReadsNarrowOperands) {
  for_each_narrow_type([&] {
    for (const ProductSizes& s : kProductSizes)
      for (bool narrow_c : {false, true})
        for_each_table([&] {
          auto a = normals(s.m * s.k, "a"), b = normals(s.k * s.n, "b"),
               bias = normals(s.n, "bias");
          std::vector<uint16_t> x = narrowed(a), w = narrowed(b), z = narrowed(bias),
                                c(size_t(s.m * s.n));
          for (auto [wide, narrow] : {std::pair{&a, &x}, {&b, &w}, {&bias, &z}})
            for (size_t i = 0; i < wide->size(); ++i) (*wide)[i] = widened((*narrow)[i]);
          Tensor c32(s.m * s.n), z32(bias);
          TestQueue queue(2);
          run(RowProduct{.c = narrow_c ? narrow_view(c) : c32.view(),
                         .a = narrow_view(x),
                         .b = narrow_view(w),
                         .bias = narrow_c ? narrow_view(z) : z32.view(),
                         .m = s.m,
                         .n = s.n,
                         .k = s.k},
              queue);
          std::vector<float> got = c32.values();
          for (size_t i = 0; narrow_c && i < c.size(); ++i) got[i] = widened(c[i]);
          expect_close(got, product_of(s, a, b, bias, {}), narrow_c ? 0.004 * narrow_part() : 2e-6,
                       "c");
        });
  });
}

TEST(RowProduct, BitsOfARowDependOnNothingElse) {
  const ProductSizes s{70, 300, 57};
  const auto a = normals(s.m * s.k, "a"), b = normals(s.k * s.n, "b");
  auto outputs = [&](TestQueue& queue, int64_t begin, int64_t rows) {
    Tensor c(rows * s.n), x(a), w(b);
    run(RowProduct{.c = c,
                   .a = x.view().slice(begin * s.k, rows * s.k),
                   .b = w,
                   .m = rows,
                   .n = s.n,
                   .k = s.k},
        queue);
    return c.values();
  };
  expect_same_bits_for_all_threads([&](TestQueue& queue) { return outputs(queue, 0, s.m); });
  for_each_table([&] {
    TestQueue queue(2);
    const std::vector<float> all = outputs(queue, 0, s.m);
    for (auto [begin, rows] :
         {std::pair<int64_t, int64_t>{0, 1}, {69, 1}, {31, 2}, {5, 9}, {30, 33}})
      EXPECT_TRUE(same_bits(outputs(queue, begin, rows),
                            {all.begin() + begin * s.n, all.begin() + (begin + rows) * s.n}))
          << rows << " rows from " << begin;
  });
}

TEST(RowProduct, CostAndChecks) {
  Tensor a(6), b(12), c(8), bias(4);
  RowProduct op{.c = c, .a = a, .b = b, .bias = bias, .m = 2, .n = 4, .k = 3};
  check(op);
  EXPECT_EQ(cost(op).flops, 2 * 24);
  EXPECT_EQ(cost(op).bytes, 4 * (6 + 12 + 8 + 4));
  op.residual = a;
  EXPECT_ERROR(check(op), "row_product", "residual has 6 elements, not [2, 4] = 8");
  op.residual = {};
  op.k = 2;
  EXPECT_ERROR(check(op), "a has 6 elements");
}

}  // namespace
