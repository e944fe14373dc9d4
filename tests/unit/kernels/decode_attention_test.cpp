// SPDX-License-Identifier: Apache-2.0
// Tests attention over a cache against plain loops in double: by index and by block, f32 and narrow
// types, bits that depend on no other row.
#include "kernels/decode_attention.hpp"

#include "narrow_type.hpp"

COVERS(decode_attention);

namespace {

using namespace kernels;
using namespace rig;

struct DecodeSizes {
  int64_t rows, heads, head_dim, keys, cache_rows;
};
const DecodeSizes kDecodeSizes[] = {{1, 1, 1, 1, 1},      {3, 2, 8, 5, 21},   {4, 3, 20, 17, 40},
                                    {5, 2, 64, 196, 400}, {2, 1, 72, 33, 33}, {7, 12, 64, 1, 30}};

struct DecodeCase {
  DecodeSizes s;
  std::vector<float> q, k, v;
  std::vector<int32_t> index, first;
  explicit DecodeCase(const DecodeSizes& sizes, double scale = 1) : s(sizes) {
    const int64_t width = s.heads * s.head_dim;
    q = normals(s.rows * width, "q", scale);
    k = normals(s.cache_rows * width, "k", scale);
    v = normals(s.cache_rows * width, "v", 1, 0.25);
    index = integers(s.rows * s.keys, 0, s.cache_rows, "index");
    first = integers(s.rows, 0, s.cache_rows - s.keys + 1, "first");
  }
  int64_t key(bool by_index, int64_t r, int64_t j) const {
    return by_index ? index[size_t(r * s.keys + j)] : first[size_t(r)] + j;
  }
  DecodeAttention op(View o, View q_view, View k_view, View v_view, bool by_index) const {
    return {.o = o,
            .q = q_view,
            .k = k_view,
            .v = v_view,
            .index = by_index ? device::view(index.data(), int64_t(index.size())) : View{},
            .first = by_index ? View{} : device::view(first.data(), int64_t(first.size())),
            .rows = s.rows,
            .heads = s.heads,
            .head_dim = s.head_dim,
            .keys = s.keys,
            .cache_rows = s.cache_rows};
  }
  std::vector<double> reference(bool by_index) const {
    const int64_t width = s.heads * s.head_dim;
    std::vector<double> o(q.size(), 0.0);
    for (int64_t r = 0; r < s.rows; ++r)
      for (int64_t h = 0; h < s.heads; ++h) {
        std::vector<double> score(size_t(s.keys), 0.0);
        double largest = -1e300, sum = 0;
        for (int64_t j = 0; j < s.keys; ++j) {
          for (int64_t d = h * s.head_dim; d < (h + 1) * s.head_dim; ++d)
            score[size_t(j)] += double(q[size_t(r * width + d)]) *
                                double(k[size_t(key(by_index, r, j) * width + d)]);
          score[size_t(j)] /= std::sqrt(double(s.head_dim));
          largest = std::max(largest, score[size_t(j)]);
        }
        for (double& x : score) sum += x = std::exp(x - largest);
        for (int64_t j = 0; j < s.keys; ++j)
          for (int64_t d = h * s.head_dim; d < (h + 1) * s.head_dim; ++d)
            o[size_t(r * width + d)] +=
                score[size_t(j)] / sum * double(v[size_t(key(by_index, r, j) * width + d)]);
      }
    return o;
  }
};

TEST(DecodeAttention, FollowsTheFormula) {
  for (const DecodeSizes& sizes : kDecodeSizes)
    for (bool by_index : {true, false})
      for (double scale : {1.0, 4.0})
        for_each_table([&] {
          SCOPED_TRACE(fmt::format("{} rows, {} heads of {}, {} keys, by_index {}", sizes.rows,
                                   sizes.heads, sizes.head_dim, sizes.keys, by_index));
          const DecodeCase c(sizes, scale);
          Tensor o(int64_t(c.q.size())), q(c.q, 1), k(c.k, 3), v(c.v, 2);
          TestQueue queue(2);
          run(c.op(o, q, k, v, by_index), queue);
          expect_close(o.values(), c.reference(by_index), 2e-6 * scale * scale, "o");
        });
}

TEST(DecodeAttention, ReadsNarrowTensors) {
  for_each_narrow_type([&] {
    for (const DecodeSizes& sizes : kDecodeSizes)
      for (bool by_index : {true, false})
        for_each_table([&] {
          DecodeCase c(sizes);
          std::vector<uint16_t> q = narrowed(c.q), k = narrowed(c.k), v = narrowed(c.v),
                                o(q.size());
          for (auto [wide, narrow] : {std::pair{&c.q, &q}, {&c.k, &k}, {&c.v, &v}})
            for (size_t i = 0; i < wide->size(); ++i) (*wide)[i] = widened((*narrow)[i]);
          TestQueue queue(2);
          run(c.op(narrow_view(o), narrow_view(q), narrow_view(k), narrow_view(v), by_index),
              queue);
          std::vector<float> got;
          for (uint16_t bits : o) got.push_back(widened(bits));
          expect_close(got, c.reference(by_index), 0.006 * narrow_part(), "o");
        });
  });
}

TEST(DecodeAttention, BitsOfARowDependOnNothingElse) {
  const DecodeCase c(DecodeSizes{6, 3, 20, 37, 90});
  const int64_t width = 60;
  auto outputs = [&](TestQueue& queue, int64_t begin, int64_t rows) {
    Tensor o(rows * width), q(c.q), k(c.k), v(c.v);
    DecodeAttention op = c.op(o, q.view().slice(begin * width, rows * width), k, v, true);
    op.rows = rows;
    op.index = op.index.slice(begin * 37, rows * 37);
    run(op, queue);
    return o.values();
  };
  expect_same_bits_for_all_threads([&](TestQueue& queue) { return outputs(queue, 0, 6); });
  TestQueue queue(2);
  const std::vector<float> all = outputs(queue, 0, 6);
  for (auto [begin, rows] : {std::pair<int64_t, int64_t>{0, 1}, {3, 1}, {2, 4}}) {
    const std::vector<float> some = outputs(queue, begin, rows);
    EXPECT_TRUE(
        same_bits(some, {all.begin() + begin * width, all.begin() + (begin + rows) * width}))
        << rows << " rows from " << begin;
  }
}

// Rows with fewer keys get the bits that they have with a shorter index.
TEST(DecodeAttention, EndsTheKeysOfARow) {
  DecodeCase c(DecodeSizes{6, 3, 20, 37, 90});
  const int64_t width = 60, count[] = {1, 2, 16, 17, 36, 37};
  for (int64_t r = 0; r < 6; ++r)
    for (int64_t j = count[r]; j < 37; ++j) c.index[size_t(r * 37 + j)] = -1;
  for_each_table([&] {
    Tensor o(6 * width), q(c.q), k(c.k), v(c.v);
    TestQueue queue(2);
    run(c.op(o, q, k, v, true), queue);
    for (int64_t r = 0; r < 6; ++r) {
      Tensor alone(width);
      DecodeAttention op = c.op(alone, q.view().slice(r * width, width), k, v, true);
      op.rows = 1;
      op.keys = count[r];
      op.index = op.index.slice(r * 37, count[r]);
      run(op, queue);
      const std::vector<float> all = o.values();
      EXPECT_TRUE(
          same_bits(alone.values(), {all.begin() + r * width, all.begin() + (r + 1) * width}))
          << "row " << r;
    }
  });
}

TEST(DecodeAttention, CostAndChecks) {
  const DecodeCase c(DecodeSizes{2, 3, 4, 5, 7});
  Tensor o(24), q(c.q), k(c.k), v(c.v);
  DecodeAttention op = c.op(o, q, k, v, true);
  check(op);
  EXPECT_EQ(cost(op).flops, 4 * 2 * 5 * 12);
  EXPECT_EQ(cost(op).bytes, 4 * (24 + 24 + 2 * 2 * 5 * 12 + 10));
  DecodeAttention bad = op;
  bad.first = device::view(c.first.data(), 2);
  EXPECT_ERROR(check(bad), "decode_attention", "exactly one of index and first");
  bad = op;
  bad.keys = 8;
  EXPECT_ERROR(check(bad), "cache_rows is 7, must be at least 8");
  if (on_cuda()) return;
  std::vector<int32_t> outside = c.index;
  outside.back() = 7;
  bad = op;
  bad.index = device::view(outside.data(), 10);
  TestQueue queue;
  EXPECT_ERROR(kernels::run(bad, queue), "id 7 of row 1 is outside [0, 7)");
  outside.assign(10, 0);
  outside[5] = -1;
  EXPECT_ERROR(kernels::run(bad, queue), "id -1 of row 1 is outside [0, 7)");
  outside.assign(10, 0);
  outside[2] = -1;
  EXPECT_ERROR(kernels::run(bad, queue), "id -1 of row 0 is outside [0, 7)");
}

}  // namespace
