// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.hpp"

#include <array>

#include "kernels/copy_columns.hpp"
#include "narrow_type.hpp"
#include "rig.hpp"

COVERS(add);
COVERS(add_table);
COVERS(copy);
COVERS(copy_columns);
COVERS(fill);
COVERS(gather_rows);
COVERS(scatter_rows);
COVERS(dropout);

namespace {

using namespace kernels;
using namespace rig;

const int64_t kCounts[] = {0, 1, 7, 16, 33, 1000, 40001};

TEST(Elementwise, AddCopyFill) {
  for (int threads : thread_counts({1, 2, 3}))
    for (int64_t n : kCounts) {
      TestQueue queue(threads);
      Tensor a(normals(n, "a"), 1), b(normals(n, "b"), 3), y(n, 5), z(n), f(n, 7);
      run(Add{y, a, b}, queue);
      run(Copy{z, a}, queue);
      run(Fill{f, -2.5f}, queue);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(y[i], a[i] + b[i]);
        ASSERT_EQ(z[i], a[i]);
        ASSERT_EQ(f[i], -2.5f);
      }
      run(Add{z, z, b}, queue);  // in place, either operand
      EXPECT_TRUE(same_bits(z.values(), y.values()));
      run(Add{b, a, b}, queue);
      EXPECT_TRUE(same_bits(b.values(), y.values()));
    }
}

TEST(Elementwise, CopyOfAnyType) {
  TestQueue queue(2);
  std::vector<uint8_t> from(70001), to(70003, 9);
  for (size_t i = 0; i < from.size(); ++i) from[i] = uint8_t(i * 7);
  run(Copy{device::view(to.data() + 1, 70001), device::view(from.data(), 70001)}, queue);
  EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin() + 1));
  EXPECT_EQ(to[0], 9);
  EXPECT_EQ(to[70002], 9);
}

TEST(Elementwise, AddTable) {
  for (int threads : thread_counts({1, 2}))
    for (auto [rows, width, length] :
         {std::array<int64_t, 3>{0, 3, 2}, {1, 1, 1}, {10, 5, 4}, {700, 33, 100}, {3, 9, 8}}) {
      TestQueue queue(threads);
      Tensor x(normals(rows * width, "x"), 1), table(normals(length * width, "table")),
          y(rows * width, 3);
      run(AddTable{y, x, table, rows, width, length}, queue);
      for (int64_t i = 0; i < rows * width; ++i)
        ASSERT_EQ(y[i], x[i] + table[i / width % length * width + i % width]);
      run(AddTable{x, x, table, rows, width, length}, queue);
      EXPECT_TRUE(same_bits(x.values(), y.values()));
    }
}

TEST(Elementwise, GatherAndScatter) {
  for (int threads : thread_counts({1, 2}))
    for (auto [rows, width, others] :
         {std::array<int64_t, 3>{0, 3, 2}, {1, 1, 1}, {9, 5, 20}, {700, 33, 900}}) {
      TestQueue queue(threads);
      std::vector<int32_t> index(static_cast<size_t>(rows));
      for (size_t i = 0; i < index.size(); ++i)
        index[i] = i % 5 == 3 ? -1 : int32_t((i * 7 + 3) % size_t(others));
      if (rows == 700)
        // indices are distinct
        for (size_t i = 0; i < index.size(); ++i)
          index[i] = i % 5 == 3 ? -int32_t(i) : int32_t(899 - i);
      View ids = device::view(index.data(), rows);
      Tensor x(normals(others * width, "x"), 1), y(rows * width, 3);
      run(GatherRows{y, x, ids, rows, width, others}, queue);
      for (int64_t i = 0; i < rows * width; ++i) {
        int32_t from = index[size_t(i / width)];
        ASSERT_EQ(y[i], from < 0 ? 0 : x[from * width + i % width]);
      }
      std::vector<float> before = normals(others * width, "before"), expected = before;
      Tensor target(before, 5), source(normals(rows * width, "source"));
      run(ScatterRows{target, source, ids, rows, width, others}, queue);
      for (int64_t i = 0; i < rows * width; ++i)
        if (int32_t to = index[size_t(i / width)]; to >= 0)
          expected[size_t(to * width + i % width)] = source[i];
      EXPECT_TRUE(same_bits(target.values(), expected));
      run(ScatterRows{target, source, ids, rows, width, others, Write::accumulate}, queue);
      for (int64_t i = 0; i < rows * width; ++i)
        if (int32_t to = index[size_t(i / width)]; to >= 0)
          expected[size_t(to * width + i % width)] += source[i];
      EXPECT_TRUE(same_bits(target.values(), expected));
    }
  if (on_cuda()) return;  // on CUDA the op does not check the indices
  TestQueue queue;
  std::vector<int32_t> index{-1, 4};
  Tensor x(8), y(4);
  EXPECT_ERROR(run(GatherRows{y, x, device::view(index.data(), 2), 2, 2, 4}, queue), "gather_rows",
               "id 4 of row 1");
  EXPECT_ERROR(run(ScatterRows{x, y, device::view(index.data(), 2), 2, 2, 4}, queue),
               "scatter_rows", "id 4 of row 1");
}

TEST(Elementwise, DropoutFollowsTheStream) {
  base::Stream stream(99, "dropout");
  for_each_table([&] {
    for (int threads : thread_counts({1, 2}))
      for (int64_t n : kCounts)
        for (int64_t first : {int64_t{0}, int64_t{1}, int64_t{1003}, (int64_t{1} << 34) - 50})
          for (float rate : {0.1f, 0.7f}) {
            TestQueue queue(threads);
            Tensor x(normals(n, "x"), 1), y(n, 3);
            run(Dropout{y, x, rate, stream, first}, queue);
            for (int64_t i = 0; i < n; ++i) {
              float expected = stream.uniform(uint64_t(first + i)) >= rate ? x[i] / (1 - rate) : 0;
              ASSERT_EQ(y[i], expected) << i;
            }
            run(Dropout{x, x, rate, stream, first}, queue);
            EXPECT_TRUE(same_bits(x.values(), y.values()));
          }
  });
}

TEST(Elementwise, DropoutRates) {
  TestQueue queue;
  Tensor x(normals(20000, "x")), y(20000);
  run(Dropout{y, x, 0, base::Stream(1, "a"), 3}, queue);
  EXPECT_TRUE(same_bits(x.values(), y.values()));
  x.data()[5] = NAN;
  run(Dropout{y, x, 0.25f, base::Stream(1, "a"), 0}, queue);
  int kept = 0;
  for (int i = 0; i < 20000; ++i) kept += y[i] != 0;
  EXPECT_NEAR(kept / 20000.0, 0.75, 0.015);
}

TEST(Elementwise, SameBitsForAllThreads) {
  expect_same_bits_for_all_threads([](TestQueue& queue) {
    Tensor x(normals(120000, "x")), z(120000);
    run(Dropout{z, x, 0.3f, base::Stream(5, "d"), 7}, queue);
    return z.values();
  });
}

TEST(Elementwise, CostAndChecks) {
  Tensor a(12), b(12), c(4), d(3);
  std::vector<int32_t> index(3);
  View ids = device::view(index.data(), 3);
  EXPECT_EQ(cost(Add{a, b, a}).bytes, 144);
  EXPECT_EQ(cost(AddTable{a, b, c, 3, 4, 1}).bytes, 4 * (24 + 4));
  EXPECT_EQ(cost(Copy{a, b}).bytes, 96);
  EXPECT_EQ(cost(Fill{a, 0}).bytes, 48);
  EXPECT_EQ(cost(GatherRows{a, b, ids, 3, 4, 3}).bytes, 4 * (24 + 3));
  EXPECT_EQ(cost(ScatterRows{a, b, ids, 3, 4, 3}).bytes, 4 * (24 + 3));
  EXPECT_EQ(cost(Dropout{a, b, 0.1f, {}, 0}).bytes, 96);
  EXPECT_EQ(cost(Add{a, b, a}).flops, 12);
  EXPECT_ERROR(check(Add{a, b, c}), "add", "b has 4 elements", "[12]");
  EXPECT_ERROR(check(AddTable{a, b, c, 3, 4, 2}), "add_table", "table has 4 elements", "[2, 4]");
  EXPECT_ERROR(check(Copy{a, c}), "copy", "y has 12 elements");
  EXPECT_ERROR(check(Copy{a, ids}), "copy", "y holds f32, not i32");
  EXPECT_ERROR(check(Fill{ids, 1}), "fill", "y holds i32, not f32");
  EXPECT_ERROR(check(GatherRows{a, b, ids, 2, 4, 3}), "gather_rows", "y has 12 elements");
  EXPECT_ERROR(check(ScatterRows{a, b, ids, 3, 4, 2}), "scatter_rows", "y has 12 elements",
               "[2, 4]");
  EXPECT_ERROR(check(Dropout{a, b, 1, {}, 0}), "dropout", "rate is 1");
  EXPECT_ERROR(check(Dropout{a, b, 0.5f, {}, -1}), "dropout", "first is -1");
}

constexpr float kOutside = 7;

// Copies `x` into columns of a wider matrix and back, from the element `begin` of its rows on.
void compare_columns(int64_t rows, int64_t columns, int64_t wide, int64_t begin, bool narrow) {
  SCOPED_TRACE(fmt::format("[{}, {}] in rows of {} from {}", rows, columns, wide, begin));
  TestQueue queue(2);
  const std::vector<float> values = normals(rows * columns, "x");
  Numbers x(values, narrow), joined(std::vector<float>(size_t(rows * wide), kOutside), narrow),
      back(std::vector<float>(size_t(rows * columns), 0.0f), narrow);
  const View part = rows ? joined.view().slice(begin, (rows - 1) * wide + columns) : joined.view();
  run(CopyColumns{.y = part, .x = x.view(), .rows = rows, .columns = columns, .ldy = wide}, queue);
  run(CopyColumns{.y = back.view(), .x = part, .rows = rows, .columns = columns, .ldx = wide},
      queue);
  EXPECT_EQ(back.values(), x.values());
  const std::vector<float> all = joined.values();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < wide; ++c) {
      const bool inside = c >= begin && c < begin + columns;
      ASSERT_EQ(all[size_t(r * wide + c)],
                inside ? x.values()[size_t(r * columns + c - begin)] : kOutside);
    }
}

TEST(CopyColumns, IntoRowsAndBack) {
  for (bool narrow : {false, true})
    for (int64_t rows : {0, 1, 3, 70}) {
      compare_columns(rows, 5, 11, 4, narrow);
      compare_columns(rows, 64, 192, 64, narrow);
      compare_columns(rows, 64, 64, 0, narrow);
      compare_columns(rows, 300, 601, 301, narrow);
    }
}

TEST(CopyColumns, Adds) {
  for (int64_t columns : {3, 64}) {
    TestQueue queue;
    const int64_t rows = 9, wide = 3 * columns;
    Tensor x(normals(rows * wide, "x")), y(normals(rows * columns, "y"));
    const std::vector<float> before = y.values();
    run(CopyColumns{.y = y,
                    .x = x.view().slice(columns, (rows - 1) * wide + columns),
                    .rows = rows,
                    .columns = columns,
                    .ldx = wide,
                    .write = Write::accumulate},
        queue);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        ASSERT_EQ(y[r * columns + c], before[size_t(r * columns + c)] + x[r * wide + columns + c]);
  }
}

TEST(CopyColumns, CostAndChecks) {
  Tensor x(12), y(24);
  CopyColumns a{.y = y.view().slice(0, 20), .x = x, .rows = 3, .columns = 4, .ldy = 8};
  check(a);
  EXPECT_EQ(cost(a).flops, 0);
  EXPECT_EQ(cost(a).bytes, 2 * 4 * 12);
  a.write = Write::accumulate;
  check(a);
  EXPECT_EQ(cost(a).flops, 12);
  EXPECT_EQ(cost(a).bytes, 3 * 4 * 12);
  a.y = y.view().slice(0, 19);
  EXPECT_ERROR(check(a), "copy_columns: y has 19 elements, needs 20");
  a.y = y;
  a.ldy = 3;
  EXPECT_ERROR(check(a), "leading dimension of y is 3, less than its 4 columns");
  std::vector<uint16_t> bits(12);
  a = {.y = narrow_view(bits), .x = narrow_view(bits), .rows = 3, .columns = 4};
  check(a);
  a.write = Write::accumulate;
  EXPECT_ERROR(check(a), "copy_columns: y holds bf16, not f32");
}

}  // namespace
