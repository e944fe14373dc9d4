// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.hpp"

#include "attention_reference.hpp"
#include "rig.hpp"

COVERS(attention_forward);
COVERS(attention_backward);

namespace {

using namespace kernels;
using namespace rig;

AttentionShape shape_of(int64_t batch, int64_t heads, int64_t lq, int64_t lk, int64_t d, Mask mask,
                        float dropout = 0) {
  AttentionShape s{.batch = batch,
                   .heads = heads,
                   .query_length = lq,
                   .key_length = lk,
                   .head_dim = d,
                   .mask = mask};
  s.dropout = dropout;
  s.stream = base::Stream(7, "attention");
  s.first_example = 5;
  return s;
}

struct Problem {
  AttentionShape shape;
  std::vector<uint8_t> flags;
  Tensor q, k, v, d_o;

  explicit Problem(const AttentionShape& s, double scale = 1)
      : shape(s),
        q(normals(s.batch * s.query_length * s.heads * s.head_dim, "q", scale), 1),
        k(normals(s.batch * s.key_length * s.heads * s.head_dim, "k", scale), 3),
        v(normals(s.batch * s.key_length * s.heads * s.head_dim, "v"), 5),
        d_o(normals(s.batch * s.query_length * s.heads * s.head_dim, "do"), 7) {
    for (int64_t b = 0; b < s.batch; ++b) flags.push_back(uint8_t(b % 3 == 1 ? 7 : b % 3 == 2));
    if (s.mask == Mask::per_example) shape.flags = device::view(flags.data(), s.batch);
  }
  AttentionReference reference() const {
    AttentionReference f{shape,
                         flags,
                         doubles(q.values()),
                         doubles(k.values()),
                         doubles(v.values()),
                         doubles(d_o.values()),
                         {},
                         {},
                         {},
                         {},
                         {}};
    f.forward();
    f.backward();
    return f;
  }
};

struct Results {
  std::vector<float> o, lse, dq, dk, dv;
  std::vector<float> all() const {
    std::vector<float> out;
    for (const auto* v : {&o, &lse, &dq, &dk, &dv}) out.insert(out.end(), v->begin(), v->end());
    return out;
  }
};

Results run_both(const Problem& p, TestQueue& queue) {
  const AttentionShape& s = p.shape;
  int64_t nq = s.batch * s.query_length * s.heads * s.head_dim,
          nk = s.batch * s.key_length * s.heads * s.head_dim;
  Tensor o(nq, 3), lse(s.batch * s.heads * s.query_length, 1), dq(nq, 1), dk(nk, 3), dv(nk, 5),
      o2(nq);
  run(AttentionForward{.o = o, .lse = lse, .q = p.q, .k = p.k, .v = p.v, .shape = s}, queue);
  run(AttentionForward{.o = o2, .q = p.q, .k = p.k, .v = p.v, .shape = s}, queue);
  EXPECT_TRUE(same_bits(o.values(), o2.values())) << "without lse";
  run(AttentionBackward{dq, dk, dv, p.d_o, p.q, p.k, p.v, o, lse, s}, queue);
  return {o.values(), lse.values(), dq.values(), dk.values(), dv.values()};
}

void compare(const Problem& p, TestQueue& queue) {
  const AttentionShape& s = p.shape;
  SCOPED_TRACE(fmt::format("batch {} heads {} lq {} lk {} d {} mask {} dropout {}", s.batch,
                           s.heads, s.query_length, s.key_length, s.head_dim, int(s.mask),
                           s.dropout));
  Results r = run_both(p, queue);
  AttentionReference f = p.reference();
  // Tolerances are relative to the largest element. Rounding of scores of order 5 dominates,
  // because backward recomputes them from lse.
  expect_close(r.o, f.o, 1e-6, "o");
  expect_close(r.lse, f.lse, 1e-6, "lse", 1);
  // With one key the gradient of the scores cancels to 0, so the tolerance is relative to its
  // terms.
  bool one = s.key_length == 1;
  expect_close(r.dq, f.dq, 2e-6, "dq", one ? 1 : 0.1);
  expect_close(r.dk, f.dk, 2e-6, "dk", one ? std::sqrt(double(s.query_length)) : 0.1);
  expect_close(r.dv, f.dv, 2e-6, "dv", 0.1);
}

TEST(Attention, ReferenceGradientIsTheDerivative) {
  for (float dropout : {0.0f, 0.4f}) {
    Problem p(shape_of(2, 2, 4, 4, 3, Mask::per_example, dropout));
    AttentionReference f = p.reference();
    auto differences = [&](std::vector<double> AttentionReference::*input,
                           const std::vector<double>& gradient) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        AttentionReference g = f;
        double h = 1e-5, middle = (g.*input)[i];
        (g.*input)[i] = middle + h;
        double up = g.loss();
        (g.*input)[i] = middle - h;
        ASSERT_NEAR(gradient[i], (up - g.loss()) / (2 * h), 1e-8);
      }
    };
    differences(&AttentionReference::q, f.dq);
    differences(&AttentionReference::k, f.dk);
    differences(&AttentionReference::v, f.dv);
  }
}

TEST(Attention, AgreesWithReference) {
  for_each_table([] {
    TestQueue queue(2);
    for (Mask mask : {Mask::full, Mask::causal, Mask::per_example}) {
      for (int64_t length : {1, 2, 5, 6, 7, 16, 24, 31, 48, 49, 64, 100})
        compare(Problem(shape_of(3, 2, length, length, 12, mask)), queue);
      for (int64_t d : {1, 5, 8, 16, 17, 24, 32, 48, 64, 65, 72, 80, 96})
        compare(Problem(shape_of(2, 3, 21, 21, d, mask)), queue);
      compare(Problem(shape_of(1, 2, 197, 197, 40, mask)), queue);
      compare(Problem(shape_of(1, 1, 256, 256, 8, mask)), queue);
    }
    for (auto [lq, lk] :
         {std::pair<int64_t, int64_t>{1, 196}, {7, 197}, {64, 196}, {196, 1}, {50, 15}, {13, 17}})
      compare(Problem(shape_of(2, 2, lq, lk, 20, Mask::full)), queue);
  });
}

TEST(Attention, Dropout) {
  for_each_table([] {
    TestQueue queue(2);
    for (float rate : {0.1f, 0.5f, 0.9f}) {
      compare(Problem(shape_of(2, 3, 33, 33, 16, Mask::per_example, rate)), queue);
      compare(Problem(shape_of(2, 1, 7, 197, 24, Mask::full, rate)), queue);
      compare(Problem(shape_of(1, 2, 64, 64, 64, Mask::causal, rate)), queue);
      compare(Problem(shape_of(3, 2, 1, 1, 3, Mask::full, rate)), queue);
    }
  });
}

TEST(Attention, DropoutDependsOnTheGlobalExampleOnly) {
  TestQueue queue;
  AttentionShape s = shape_of(4, 2, 9, 9, 8, Mask::full, 0.3f);
  Problem p(s);
  std::vector<float> whole = run_both(p, queue).o;
  int64_t per_example = 9 * 2 * 8;
  for (int64_t b = 0; b < 4; ++b) {
    AttentionShape one = s;
    one.batch = 1;
    one.first_example = s.first_example + b;
    Tensor o(per_example);
    run(AttentionForward{.o = o,
                         .q = p.q.view().slice(b * per_example, per_example),
                         .k = p.k.view().slice(b * per_example, per_example),
                         .v = p.v.view().slice(b * per_example, per_example),
                         .shape = one},
        queue);
    EXPECT_TRUE(std::equal(o.data(), o.data() + per_example, whole.begin() + b * per_example)) << b;
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  for_each_table([] {
    TestQueue queue;
    Problem p(shape_of(1, 2, 40, 40, 16, Mask::causal), 12);  // scores up to several hundred
    Results r = run_both(p, queue);
    AttentionReference f = p.reference();
    // A score of 500 has an error of 3e-5, which the softmax keeps.
    expect_close(r.o, f.o, 2e-4, "o");
    expect_close(r.lse, f.lse, 1e-6, "lse");
    expect_close(r.dv, f.dv, 2e-4, "dv");
    for (float x : r.all()) ASSERT_TRUE(std::isfinite(x));
  });
}

TEST(Attention, CausalReadsNothingAhead) {
  for_each_table([] {
    TestQueue queue;
    AttentionShape s = shape_of(1, 1, 20, 20, 8, Mask::causal);
    Problem p(s);
    std::vector<float> before = run_both(p, queue).o;
    for (int64_t i = 13 * 8; i < 20 * 8; ++i) {
      p.k.data()[i] = 1e10f;
      p.v.data()[i] = 1e10f;
    }
    std::vector<float> after = run_both(p, queue).o;
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + 13 * 8, after.begin()));
  });
}

TEST(Attention, NanStaysVisible) {
  for_each_table([] {
    TestQueue queue;
    Problem p(shape_of(1, 2, 20, 20, 8, Mask::full));
    p.q.data()[3 * 16 + 1] = NAN;  // query 3 of head 0
    Results r = run_both(p, queue);
    for (int d = 0; d < 8; ++d) {
      EXPECT_TRUE(std::isnan(r.o[size_t(3 * 16 + d)]));
      EXPECT_FALSE(std::isnan(r.o[size_t(4 * 16 + d)]));
    }
    EXPECT_TRUE(std::isnan(r.dk[0]));
    EXPECT_FALSE(std::isnan(r.dk[8]));  // the other head
  });
}

TEST(Attention, EmptyBatch) {
  TestQueue queue(2);
  run_both(Problem(shape_of(0, 2, 5, 5, 8, Mask::per_example)), queue);
}

TEST(Attention, SameBitsForAllThreads) {
  for (float dropout : {0.0f, 0.2f})
    expect_same_bits_for_all_threads([&](TestQueue& queue) {
      return run_both(Problem(shape_of(5, 3, 50, 50, 20, Mask::per_example, dropout)), queue).all();
    });
}

TEST(Attention, CostAndChecks) {
  AttentionShape s = shape_of(2, 3, 4, 4, 5, Mask::full);
  Tensor t(120), lse(24);
  AttentionForward f{.o = t, .lse = lse, .q = t, .k = t, .v = t, .shape = s};
  check(f);
  EXPECT_EQ(cost(f).flops, 2 * 2 * 2 * 3 * 4 * 4 * 5);
  EXPECT_EQ(cost(f).bytes, 4 * (4 * 120 + 24));
  AttentionBackward b{t, t, t, t, t, t, t, t, lse, s};
  check(b);
  EXPECT_EQ(cost(b).flops, 2 * cost(f).flops);
  f.shape.mask = Mask::causal;
  EXPECT_EQ(cost(f).flops, 2 * 2 * 2 * 3 * 10 * 5);
  f.shape.mask = Mask::per_example;
  EXPECT_ERROR(check(f), "attention_forward", "flags");
  uint8_t flags[2] = {};
  f.shape.flags = device::view(flags, 2);
  check(f);
  f.shape.key_length = 5;
  EXPECT_ERROR(check(f), "as many queries (4) as keys (5)");
  f.shape.mask = Mask::full;
  EXPECT_ERROR(check(f), "k has 120 elements", "[2, 5, 3, 5]");
  b.lse = t;
  EXPECT_ERROR(check(b), "attention_backward", "lse has 120 elements", "[2, 3, 4] = 24");
  f = {.o = t, .q = t, .k = t, .v = t, .shape = s};
  f.shape.dropout = 1;
  EXPECT_ERROR(check(f), "dropout is 1");
}

}  // namespace
