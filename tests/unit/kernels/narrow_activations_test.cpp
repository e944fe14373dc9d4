// SPDX-License-Identifier: Apache-2.0
// Tests ops whose activations may be bf16, or f16 on CUDA. They read such values, compute in f32 as
// the f32 op does, and round the results. For operands that are exact in the narrow type, every bit
// is that of the f32 op's result, rounded. Attention rounds more.
#include "attention_reference.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/patchify.hpp"
#include "narrow_type.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

// Holds numbers in both types, and gives a view of either. The element after the end is a guard.
struct Both {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
  explicit Both(int64_t count, const std::string& name = "")
      : wide(size_t(count)), narrow(size_t(count) + 1, 0xABCD) {
    if (!name.empty()) wide = normals(count, name);
    for (size_t i = 0; i < wide.size(); ++i) {
      narrow[i] = narrowed(wide[i]);
      wide[i] = widened(narrow[i]);
    }
  }
  View view(DType type) {
    int64_t n = int64_t(wide.size());
    return type != DType::f32 ? View{narrow.data(), type, n} : device::view(wide.data(), n);
  }
  // Compares the results of both ops.
  void expect_rounded(const char* what) const {
    for (size_t i = 0; i < wide.size(); ++i)
      ASSERT_EQ(narrow[i], narrowed(wide[i])) << what << "[" << i << "] of " << wide[i];
    EXPECT_EQ(narrow[wide.size()], 0xABCD) << what;
  }
};

void for_all(const std::function<void(TestQueue&)>& body) {
  for_each_narrow_type([&] {
    for_each_table([&] {
      for (int threads : thread_counts({1, 2})) {
        TestQueue queue(threads);
        body(queue);
      }
    });
  });
}

TEST(NarrowActivations, GeluAndDropout) {
  for_all([](TestQueue& queue) {
    for (int64_t n : {1, 15, 64, 1003, 40000}) {
      Both x(n, "x"), y(n), dy(n, "dy"), dx(n), dropped(n);
      for (DType t : {DType::f32, narrow_type()}) {
        run(GeluForward{.y = y.view(t), .x = x.view(t)}, queue);
        run(GeluBackward{.dx = dx.view(t), .dy = dy.view(t), .x = x.view(t)}, queue);
        run(Dropout{.y = dropped.view(t),
                    .x = x.view(t),
                    .rate = 0.3f,
                    .stream = base::Stream(3, "drop"),
                    .first = 5},
            queue);
      }
      y.expect_rounded("gelu");
      dx.expect_rounded("gelu gradient");
      dropped.expect_rounded("dropout");
    }
  });
}

// A narrow gradient gives the bits of the same numbers in f32. The copy of dx is dx, rounded.
TEST(NarrowActivations, LayerNormBackward) {
  for_all([](TestQueue& queue) {
    for (auto [rows, columns] : {std::pair{3, 7}, {65, 48}, {70, 768}, {300, 129}})
      for (Write write : {Write::overwrite, Write::accumulate}) {
        SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
        const int64_t n = rows * columns;
        Both dy(n, "dy");
        Tensor x(normals(n, "x")), mean(normals(rows, "mean", 0.1)),
            rstd(normals(rows, "rstd", 0.1, 1)), scale(normals(columns, "scale", 0.3, 1));
        Tensor dx[2] = {Tensor(normals(n, "dx")), Tensor(normals(n, "dx"))};
        Tensor dscale[2] = {Tensor(columns), Tensor(columns)},
               dbias[2] = {Tensor(columns), Tensor(columns)}, sums(columns);
        std::vector<uint16_t> rounded(size_t(n) + 1, 0xABCD);
        for (int narrow : {0, 1}) {
          LayerNormBackward a{.dx = dx[narrow],
                              .dscale = dscale[narrow],
                              .dbias = dbias[narrow],
                              .dy = dy.view(narrow ? narrow_type() : DType::f32),
                              .x = x,
                              .mean = mean,
                              .rstd = rstd,
                              .scale = scale,
                              .rows = rows,
                              .columns = columns,
                              .dx_write = write};
          if (narrow) {
            a.rounded = narrow_view(rounded).slice(0, n);
            a.sums = sums;
          }
          run(a, queue);
        }
        EXPECT_TRUE(same_bits(dx[0].values(), dx[1].values()));
        EXPECT_TRUE(same_bits(dscale[0].values(), dscale[1].values()));
        EXPECT_TRUE(same_bits(dbias[0].values(), dbias[1].values()));
        std::vector<double> expected(static_cast<size_t>(columns));
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(rounded[size_t(i)], narrowed(dx[1][i])) << i;
          expected[size_t(i % columns)] += double(dx[1][i]);
        }
        EXPECT_EQ(rounded[size_t(n)], 0xABCD);
        expect_close(sums.values(), expected, 2e-6, "sums", std::sqrt(double(rows)));
      }
  });
}

TEST(NarrowActivations, LayerNormColumnSumGatherPatchify) {
  for_all([](TestQueue& queue) {
    for (auto [rows, columns] : {std::pair{3, 7}, {65, 48}, {300, 129}}) {
      Both x(rows * columns, "x"), y(rows * columns), picked(4 * columns);
      std::vector<float> mean(static_cast<size_t>(rows)), rstd(mean), sums[2];
      std::vector<float> scale = normals(columns, "scale", 0.3, 1), bias = normals(columns, "bias");
      auto floats = [](std::vector<float>& v) { return device::view(v.data(), int64_t(v.size())); };
      std::vector<int32_t> index = {2, -1, 0, int32_t(rows) - 1};
      for (DType t : {DType::f32, narrow_type()}) {
        run(LayerNormForward{.y = y.view(t),
                             .mean = floats(mean),
                             .rstd = floats(rstd),
                             .x = x.view(DType::f32),
                             .scale = floats(scale),
                             .bias = floats(bias),
                             .rows = rows,
                             .columns = columns},
            queue);
        auto& sum = sums[t != DType::f32];
        sum.assign(size_t(columns), 1);
        run(ColumnSum{.out = floats(sum),
                      .x = x.view(t),
                      .m = rows,
                      .n = columns,
                      .write = Write::accumulate},
            queue);
        run(GatherRows{.y = picked.view(t),
                       .x = x.view(t),
                       .index = {index.data(), DType::i32, 4},
                       .rows = 4,
                       .width = columns,
                       .source_rows = rows},
            queue);
      }
      y.expect_rounded("layer norm");
      picked.expect_rounded("gathered rows");
      EXPECT_EQ(sums[0], sums[1]);
    }
    std::vector<float> image = normals(2 * 10 * 9 * 3, "image");
    Both patches(2 * 2 * 3 * 5 * 3 * 3);
    for (DType t : {DType::f32, narrow_type()})
      run(Patchify{.patches = patches.view(t),
                   .image = device::view(image.data(), int64_t(image.size())),
                   .batch = 2,
                   .height = 10,
                   .width = 9,
                   .patch = 5,
                   .patch_width = 3},
          queue);
    patches.expect_rounded("patches");
  });
}

// Weights and gradients of scores are rounded before the products that read them, so each term of a
// sum is off by at most 2^-9. The results are rounded once more. `largest` is the bound of the
// sum's terms.
void expect_near(const Both& got, const std::vector<double>& expected, const char* what) {
  double largest = 0, square = 0, error = 0, worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    double e = widened(got.narrow[i]) - expected[i];
    largest = std::max(largest, std::abs(expected[i]));
    square += expected[i] * expected[i];
    error += e * e;
    worst = std::max(worst, std::abs(e));
  }
  EXPECT_LT(std::sqrt(error / square), 6e-3 * narrow_part()) << what;
  EXPECT_LT(worst, 1.2e-2 * narrow_part() * largest) << what;
  EXPECT_EQ(got.narrow[expected.size()], 0xABCD) << what;
}

struct AttentionCase {
  int64_t batch, heads, queries, keys, head_dim;
  Mask mask;
  float dropout;
};
const AttentionCase kAttentionCases[] = {
    {2, 3, 9, 9, 5, Mask::causal, 0},
    {2, 2, 64, 50, 64, Mask::full, 0},
    {3, 1, 70, 70, 24, Mask::per_example, 0.2f},
    {1, 2, 197, 197, 64, Mask::full, 0},
    {2, 1, 31, 31, 17, Mask::causal, 0},
    {2, 2, 7, 33, 72, Mask::full, 0},
    {3, 2, 64, 64, 64, Mask::per_example, 0},
    {1, 1, 1, 1, 1, Mask::full, 0},
    {1, 3, 5, 1, 8, Mask::full, 0.3f},
};

struct AttentionProblem {
  std::vector<uint8_t> flags = {1, 0, 1};
  AttentionShape shape;
  Both q, k, v, d_o, o, dq, dk, dv;
  std::vector<float> lse;
  explicit AttentionProblem(const AttentionCase& c)
      : shape{.batch = c.batch,
              .heads = c.heads,
              .query_length = c.queries,
              .key_length = c.keys,
              .head_dim = c.head_dim,
              .mask = c.mask,
              .dropout = c.dropout,
              .stream = base::Stream(4, "weights")},
        q(c.batch * c.queries * c.heads * c.head_dim, "q"),
        k(c.batch * c.keys * c.heads * c.head_dim, "k"),
        v(int64_t(k.wide.size()), "v"),
        d_o(int64_t(q.wide.size()), "d_o"),
        o(int64_t(q.wide.size())),
        dq(o),
        dk(int64_t(k.wide.size())),
        dv(dk),
        lse(size_t(c.batch * c.heads * c.queries)) {
    if (c.mask == Mask::per_example) shape.flags = device::view(flags.data(), c.batch);
  }
  void run_both(TestQueue& queue) {
    View lse_view = device::view(lse.data(), int64_t(lse.size()));
    const DType t = narrow_type();
    run(AttentionForward{.o = o.view(t),
                         .lse = lse_view,
                         .q = q.view(t),
                         .k = k.view(t),
                         .v = v.view(t),
                         .shape = shape},
        queue);
    run(AttentionBackward{.dq = dq.view(t),
                          .dk = dk.view(t),
                          .dv = dv.view(t),
                          .d_o = d_o.view(t),
                          .q = q.view(t),
                          .k = k.view(t),
                          .v = v.view(t),
                          .o = o.view(t),
                          .lse = lse_view,
                          .shape = shape},
        queue);
  }
};

TEST(NarrowActivations, Attention) {
  for_all([](TestQueue& queue) {
    for (const AttentionCase& c : kAttentionCases) {
      SCOPED_TRACE(
          fmt::format("{} x {} x {} x {} x {}", c.batch, c.heads, c.queries, c.keys, c.head_dim));
      AttentionProblem p(c);
      p.run_both(queue);
      AttentionReference f{p.shape,
                           p.flags,
                           doubles(p.q.wide),
                           doubles(p.k.wide),
                           doubles(p.v.wide),
                           doubles(p.d_o.wide),
                           {},
                           {},
                           {},
                           {},
                           {}};
      f.forward();
      f.backward();
      expect_near(p.o, f.o, "o");
      expect_near(p.dv, f.dv, "dv");
      for (size_t i = 0; i < f.lse.size(); ++i)
        ASSERT_NEAR(p.lse[i], f.lse[i], 2e-6 * (1 + std::abs(f.lse[i])));
      // with one key the gradient cancels to 0
      if (c.keys > 1) {
        expect_near(p.dq, f.dq, "dq");
        expect_near(p.dk, f.dk, "dk");
      }
    }
  });
}

// Without the instructions the op rounds equal values, and only the order in which a pair is summed
// may differ.
TEST(NarrowActivations, AttentionIsTheSameWithoutInstructions) {
  for (const AttentionCase& c : kAttentionCases) {
    std::vector<Both> first;
    for_each_table([&] {
      TestQueue queue;
      AttentionProblem p(c);
      p.run_both(queue);
      std::vector<Both> now = {p.o, p.dq, p.dk, p.dv};
      if (first.empty()) first = now;
      for (size_t t = 0; t < now.size() && c.keys > 1; ++t) {
        size_t other = 0;
        for (size_t i = 0; i < now[t].wide.size(); ++i)
          other += now[t].narrow[i] != first[t].narrow[i];
        EXPECT_LE(double(other), 2 + 0.02 * double(now[t].wide.size())) << t;
      }
    });
  }
}

TEST(NarrowActivations, TypesMustAgree) {
  Both x(8, "x"), y(8);
  EXPECT_ERROR(check(GeluForward{.y = y.view(DType::f32), .x = x.view(DType::bf16)}),
               "gelu_forward: y holds f32, not bf16");
  EXPECT_ERROR(check(Dropout{.y = y.view(DType::bf16), .x = x.view(DType::f32), .stream = {}}),
               "dropout: y holds bf16, not f32");
  AttentionShape shape{.batch = 1, .heads = 1, .query_length = 2, .key_length = 2, .head_dim = 4};
  EXPECT_ERROR(check(AttentionForward{.o = y.view(DType::bf16),
                                      .q = x.view(DType::bf16),
                                      .k = x.view(DType::f32),
                                      .v = x.view(DType::bf16),
                                      .shape = shape}),
               "attention_forward: k holds f32, not bf16");
}

}  // namespace
