// SPDX-License-Identifier: Apache-2.0
// Tests rotary positions against plain loops in double, in all types and with gaps between rows.
#include "kernels/rotate_heads.hpp"

#include "narrow_type.hpp"
#include "rig.hpp"

COVERS(rotate_heads);

namespace {

using namespace kernels;
using namespace rig;

struct RotateCase {
  int64_t rows, length, heads, head_dim, stride;
  int64_t row() const { return stride ? stride : heads * head_dim; }
  int64_t count() const { return rows ? (rows - 1) * row() + heads * head_dim : 0; }
};
const RotateCase kRotateCases[] = {{1, 1, 1, 2, 0},   {6, 3, 2, 6, 0},   {10, 5, 3, 8, 0},
                                   {4, 2, 2, 16, 96}, {4, 2, 2, 16, 37}, {40, 20, 4, 64, 0},
                                   {0, 2, 1, 4, 0}};

std::vector<float> angles(const RotateCase& c) {
  std::vector<float> out;
  const std::vector<float> all = normals(c.length * c.head_dim / 2, "angles", 2);
  for (int64_t r = 0; r < c.length; ++r)
    for (const bool sines : {false, true})
      for (int64_t i = 0; i < c.head_dim / 2; ++i) {
        const float angle = all[size_t(r * c.head_dim / 2 + i)];
        out.push_back(sines ? std::sin(angle) : std::cos(angle));
      }
  return out;
}

std::vector<double> turned(const RotateCase& c, const std::vector<double>& x,
                           const std::vector<float>& table, double sign) {
  std::vector<double> out = x;
  const int64_t half = c.head_dim / 2;
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < half; ++i) {
        const size_t at = size_t(r * c.row() + h * c.head_dim + i),
                     place = size_t(r % c.length * c.head_dim + i);
        const double a = x[at], b = x[at + size_t(half)], cosine = double(table[place]),
                     sine = sign * double(table[place + size_t(half)]);
        out[at] = a * cosine - b * sine;
        out[at + size_t(half)] = b * cosine + a * sine;
      }
  return out;
}

TEST(RotateHeads, TurnsPairsAndBack) {
  for (const RotateCase& c : kRotateCases) {
    SCOPED_TRACE(fmt::format("{} rows, heads of {}, stride {}", c.rows, c.head_dim, c.stride));
    TestQueue queue(2);
    const std::vector<float> before = normals(c.count(), "x");
    Tensor x(before, 1), table(angles(c));
    RotateHeads a{x, table, c.rows, c.heads, c.head_dim, c.stride};
    run(a, queue);
    const std::vector<double> given(before.begin(), before.end());
    expect_close(x.values(), turned(c, given, table.values(), 1), 1e-6, "forward");
    a.backward = true;
    run(a, queue);
    expect_close(x.values(), given, 2e-6, "there and back");
    Tensor other(before);
    a.x = other;
    run(a, queue);
    expect_close(other.values(), turned(c, given, table.values(), -1), 1e-6, "backward");
  }
}

TEST(RotateHeads, AngleOfZeroChangesNoBit) {
  TestQueue queue;
  const std::vector<float> before = normals(8, "x");
  Tensor x(before), table({1, 1, 0, 0});
  run(RotateHeads{x, table, 1, 2, 4}, queue);
  EXPECT_TRUE(same_bits(x.values(), before));
}

TEST(RotateHeads, NarrowTypesRoundTheSameValues) {
  for_each_narrow_type([] {
    for (const RotateCase& c : kRotateCases) {
      TestQueue queue(2);
      std::vector<uint16_t> x = narrowed(normals(c.count(), "x"));
      std::vector<double> given;
      for (const uint16_t v : x) given.push_back(double(widened(v)));
      Tensor table(angles(c));
      run(RotateHeads{narrow_view(x), table, c.rows, c.heads, c.head_dim, c.stride}, queue);
      const std::vector<double> want = turned(c, given, table.values(), 1);
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(double(widened(x[i])), want[i], 0.005 * std::abs(want[i]) + 1e-6);
    }
  });
}

TEST(RotateHeads, CostAndChecks) {
  Tensor x(48), table(16);
  RotateHeads a{x, table, 6, 2, 4};
  EXPECT_ERROR(check(a), "rotate_heads", "does not divide 6 rows");
  a.table = device::View(table).slice(0, 12);
  check(a);
  EXPECT_EQ(cost(a).bytes, 4 * (2 * 48 + 12));
  a.heads = 3;
  EXPECT_ERROR(check(a), "rotate_heads", "x has 48 elements");
  a.stride = 4;
  EXPECT_ERROR(check(a), "rotate_heads", "rows of 4 overlap");
  a.head_dim = 3;
  EXPECT_ERROR(check(a), "rotate_heads", "3 is odd");
}

}  // namespace
