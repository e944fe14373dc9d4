// SPDX-License-Identifier: Apache-2.0
// Tests attention over packed rows. Each example must have the bits that it has alone, with its own
// numbers of queries and keys. On GPUs, results must be close.
#include "kernels/attention.hpp"
#include "rig.hpp"

namespace {

using namespace kernels;
using namespace rig;

struct Packed {
  std::vector<int32_t> offsets{0};
  explicit Packed(const std::vector<int32_t>& counts) {
    for (int32_t n : counts) offsets.push_back(offsets.back() + n);
  }
  int64_t rows() const { return offsets.back(); }
  // Returns the elements of example b in a tensor with `width` elements in each row.
  std::vector<float> part(Tensor& t, size_t b, int64_t width) const {
    return {t.data() + offsets[b] * width, t.data() + offsets[b + 1] * width};
  }
  View view() { return {offsets.data(), device::DType::i32, int64_t(offsets.size())}; }
};

// A library of a GPU may choose another kernel for another shape.
void expect_same(const std::vector<float>& x, const Tensor& alone, const char* what) {
  if (on_cuda()) return expect_close(x, doubles(alone.values()), 2e-6, what, 0.1);
  EXPECT_TRUE(same_bits(x, alone.values())) << what;
}

// `queries` and `keys` are the rows of each example. With a fixed order, GPUs run our own kernels.
void compare(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys, Mask mask,
             bool packed_keys, bool fixed_order) {
  constexpr int64_t kHeads = 2, kDim = 20, kRow = kHeads * kDim, kLength = 70;
  const int64_t batch = int64_t(queries.size());
  Packed q_rows(queries),
      k_rows(packed_keys ? keys : std::vector<int32_t>(size_t(batch), int32_t(kLength)));
  std::vector<uint8_t> flags;
  for (int64_t b = 0; b < batch; ++b) flags.push_back(b % 2 == 0);
  AttentionShape all{
      .batch = batch,
      .heads = kHeads,
      .query_length = kLength,
      .key_length = kLength,
      .head_dim = kDim,
      .mask = mask,
      .flags = mask == Mask::per_example ? device::view(flags.data(), batch) : View{}};
  all.query_offsets = q_rows.view();
  if (packed_keys) all.key_offsets = k_rows.view();
  const int64_t q_count = q_rows.rows() * kRow, k_count = k_rows.rows() * kRow;
  Tensor q(normals(q_count, "q")), k(normals(k_count, "k")), v(normals(k_count, "v")),
      d_o(normals(q_count, "d_o"));
  Tensor o(q_count), lse(batch * kHeads * kLength), dq(q_count), dk(k_count), dv(k_count);
  TestQueue queue(2, fixed_order);
  run(AttentionForward{.o = o, .lse = lse, .q = q, .k = k, .v = v, .shape = all}, queue);
  run(AttentionBackward{.dq = dq,
                        .dk = dk,
                        .dv = dv,
                        .d_o = d_o,
                        .q = q,
                        .k = k,
                        .v = v,
                        .o = o,
                        .lse = lse,
                        .shape = all},
      queue);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t n = queries[size_t(b)],
                  m = k_rows.offsets[size_t(b) + 1] - k_rows.offsets[size_t(b)];
    auto part = [&](Tensor& t, const Packed& rows) { return rows.part(t, size_t(b), kRow); };
    // A causal mask needs as many queries as keys. Here no result may depend on the missing
    // queries.
    const bool causal = mask == Mask::causal || (mask == Mask::per_example && flags[size_t(b)]);
    if (causal && n != m) continue;
    if (n == 0) {
      EXPECT_EQ(part(dk, k_rows), std::vector<float>(size_t(m * kRow)))
          << "no query uses example " << b;
      EXPECT_EQ(part(dv, k_rows), std::vector<float>(size_t(m * kRow)));
      continue;
    }
    AttentionShape one{.batch = 1,
                       .heads = kHeads,
                       .query_length = n,
                       .key_length = m,
                       .head_dim = kDim,
                       .mask = causal ? Mask::causal : Mask::full};
    Tensor q1(part(q, q_rows)), k1(part(k, k_rows)), v1(part(v, k_rows)), d_o1(part(d_o, q_rows));
    Tensor o1(n * kRow), lse1(kHeads * n), dq1(n * kRow), dk1(m * kRow), dv1(m * kRow);
    run(AttentionForward{.o = o1, .lse = lse1, .q = q1, .k = k1, .v = v1, .shape = one}, queue);
    run(AttentionBackward{.dq = dq1,
                          .dk = dk1,
                          .dv = dv1,
                          .d_o = d_o1,
                          .q = q1,
                          .k = k1,
                          .v = v1,
                          .o = o1,
                          .lse = lse1,
                          .shape = one},
        queue);
    SCOPED_TRACE(fmt::format("example {}", b));
    expect_same(part(o, q_rows), o1, "o");
    expect_same(part(dq, q_rows), dq1, "dq");
    expect_same(part(dk, k_rows), dk1, "dk");
    expect_same(part(dv, k_rows), dv1, "dv");
  }
}

TEST(PackedAttention, EachExampleAsIfAlone) {
  for_each_table([] {
    for (bool fixed_order : {false, true}) {
      compare({3, 70, 1, 49}, {3, 70, 1, 49}, Mask::causal, true, fixed_order);
      compare({3, 70, 17, 70}, {3, 70, 17, 70}, Mask::per_example, true, fixed_order);
      compare({5, 12, 0, 70}, {70, 12, 9, 70}, Mask::full, true, fixed_order);
      compare({1, 70, 33, 8}, {}, Mask::full, false, fixed_order);
    }
  });
}

// The last layer has fewer queries than keys. Their results must be as with all queries.
TEST(PackedAttention, FewerQueriesThanKeysUnderACausalMask) {
  constexpr int64_t kDim = 24, kLength = 30, kSome = 11;
  std::vector<int32_t> some{0, kSome}, all{0, kLength};
  auto view = [](std::vector<int32_t>& v) { return View{v.data(), device::DType::i32, 2}; };
  Tensor q(normals(kLength * kDim, "q")), k(normals(kLength * kDim, "k")),
      v(normals(kLength * kDim, "v"));
  Tensor o(kLength * kDim), part(kSome * kDim);
  TestQueue queue;
  AttentionShape shape{.batch = 1,
                       .heads = 1,
                       .query_length = kLength,
                       .key_length = kLength,
                       .head_dim = kDim,
                       .mask = Mask::causal};
  run(AttentionForward{.o = o, .q = q, .k = k, .v = v, .shape = shape}, queue);
  shape.query_offsets = view(some);
  shape.key_offsets = view(all);
  View first = q;
  run(
      AttentionForward{
          .o = part, .q = first.slice(0, kSome * kDim), .k = k, .v = v, .shape = shape},
      queue);
  for (int64_t i = 0; i < kSome * kDim; ++i) ASSERT_NEAR(part[i], o[i], 1e-6) << i;
}

// The scratch of all threads is sized by the shape, so fewer rows must not need more. (Blocks of 41
// queries are larger than those of 64.)
TEST(PackedAttention, FewerRowsNeedNoMoreScratch) {
  if (on_cuda()) GTEST_SKIP() << "scratch of the CPU's threads";
  for_each_table([] {
    auto check_loops = [](const auto& loops) {
      for (int64_t length : {1, 7, 48, 49, 64, 100, 196})
        for (int64_t keys : {int64_t(196), length}) {
          int64_t forward = loops.attention_forward_scratch(length, keys, 64);
          int64_t backward = loops.attention_backward_scratch(length, keys, 64);
          for (int64_t q = 0; q <= length; ++q)
            for (int64_t k : {keys, keys / 2, q}) {
              if (k > keys) continue;
              ASSERT_LE(loops.attention_forward_scratch(q, k, 64), forward)
                  << q << " of " << length << ", " << k << " of " << keys;
              ASSERT_LE(loops.attention_backward_scratch(q, k, 64), backward)
                  << q << " of " << length << ", " << k << " of " << keys;
            }
        }
    };
    check_loops(vector_table().f32);
    check_loops(vector_table().bf16);
  });
}

TEST(PackedAttention, Checks) {
  if (on_cuda()) GTEST_SKIP() << "only CPUs check offsets";
  std::vector<int32_t> offsets{0, 2, 9};
  Tensor q(6 * 8), k(8 * 8), o(6 * 8);
  TestQueue queue;
  AttentionShape shape{.batch = 2, .heads = 2, .query_length = 4, .key_length = 4, .head_dim = 4};
  shape.query_offsets = View{offsets.data(), device::DType::i32, 3};
  EXPECT_ERROR(run(AttentionForward{.o = o, .q = q, .k = k, .v = k, .shape = shape}, queue),
               "offsets end at 9 of 6 rows");
  offsets = {0, 1, 6};
  EXPECT_ERROR(run(AttentionForward{.o = o, .q = q, .k = k, .v = k, .shape = shape}, queue),
               "example 1 has rows [1, 6)");
  shape.dropout = 0.5f;
  EXPECT_ERROR(check(AttentionForward{.o = o, .q = q, .k = k, .v = k, .shape = shape}),
               "packed rows exclude dropout");
}

}  // namespace
