// Ops whose activations may be bf16: they read what is there, compute in f32 as the f32 op does, and round what they
// write. So for operands that are bf16 values, every bit is that of the f32 op's result, rounded.
#include "kernels/attention.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/patchify.hpp"
#include "rig.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

// The same numbers in both types, and as a view of the one asked for. Elements past the end are a guard.
struct Both {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
  explicit Both(int64_t count, const std::string& name = "") : wide(size_t(count)), narrow(size_t(count) + 1, 0xABCD) {
    if (!name.empty()) wide = normals(count, name);
    for (size_t i = 0; i < wide.size(); ++i) {
      narrow[i] = loops::round_to_bf16(wide[i]).bits;
      wide[i] = loops::to_float(loops::Bf16{narrow[i]});
    }
  }
  View view(DType type) {
    int64_t n = int64_t(wide.size());
    return type == DType::bf16 ? View{narrow.data(), DType::bf16, n} : device::view(wide.data(), n);
  }
  // After both ops ran.
  void expect_rounded(const char* what) const {
    for (size_t i = 0; i < wide.size(); ++i)
      ASSERT_EQ(narrow[i], loops::round_to_bf16(wide[i]).bits) << what << "[" << i << "] of " << wide[i];
    EXPECT_EQ(narrow[wide.size()], 0xABCD) << what;
  }
};

void for_all(const std::function<void(TestQueue&)>& body) {
  for_each_table([&] {
    for (int threads : {1, 2}) {
      TestQueue queue(threads);
      body(queue);
    }
  });
}

TEST(Bf16Activations, GeluAndDropout) {
  for_all([](TestQueue& queue) {
    for (int64_t n : {1, 15, 64, 1003, 40000}) {
      Both x(n, "x"), y(n), dy(n, "dy"), dx(n), dropped(n);
      for (DType t : {DType::f32, DType::bf16}) {
        run(GeluForward{.y = y.view(t), .x = x.view(t)}, queue);
        run(GeluBackward{.dx = dx.view(t), .dy = dy.view(t), .x = x.view(t)}, queue);
        run(Dropout{.y = dropped.view(t), .x = x.view(t), .rate = 0.3f, .stream = base::Stream(3, "drop"), .first = 5}, queue);
      }
      y.expect_rounded("gelu"), dx.expect_rounded("gelu gradient"), dropped.expect_rounded("dropout");
    }
  });
}

TEST(Bf16Activations, LayerNormColumnSumGatherPatchify) {
  for_all([](TestQueue& queue) {
    for (auto [rows, columns] : {std::pair{3, 7}, {65, 48}, {300, 129}}) {
      Both x(rows * columns, "x"), y(rows * columns), picked(4 * columns);
      std::vector<float> mean(static_cast<size_t>(rows)), rstd(mean), sums[2];
      std::vector<float> scale = normals(columns, "scale", 0.3, 1), bias = normals(columns, "bias");
      auto floats = [](std::vector<float>& v) { return device::view(v.data(), int64_t(v.size())); };
      std::vector<int32_t> index = {2, -1, 0, int32_t(rows) - 1};
      for (DType t : {DType::f32, DType::bf16}) {
        run(LayerNormForward{.y = y.view(t), .mean = floats(mean), .rstd = floats(rstd), .x = x.view(DType::f32),
                             .scale = floats(scale), .bias = floats(bias), .rows = rows, .columns = columns},
            queue);
        auto& sum = sums[t == DType::bf16];
        sum.assign(size_t(columns), 1);
        run(ColumnSum{.out = floats(sum), .x = x.view(t), .m = rows, .n = columns, .write = Write::accumulate}, queue);
        run(GatherRows{.y = picked.view(t), .x = x.view(t), .index = {index.data(), DType::i32, 4}, .rows = 4, .width = columns,
                       .source_rows = rows},
            queue);
      }
      y.expect_rounded("layer norm"), picked.expect_rounded("gathered rows");
      EXPECT_EQ(sums[0], sums[1]);
    }
    std::vector<float> image = normals(2 * 10 * 9 * 3, "image");
    Both patches(2 * 2 * 3 * 5 * 3 * 3);
    for (DType t : {DType::f32, DType::bf16})
      run(Patchify{.patches = patches.view(t), .image = device::view(image.data(), int64_t(image.size())), .batch = 2,
                   .height = 10, .width = 9, .patch = 5, .patch_width = 3},
          queue);
    patches.expect_rounded("patches");
  });
}

TEST(Bf16Activations, Attention) {
  struct Case {
    int64_t batch, heads, queries, keys, head_dim;
    Mask mask;
    float dropout;
  };
  for_all([](TestQueue& queue) {
    for (const Case& c : {Case{2, 3, 9, 9, 5, Mask::causal, 0}, {2, 2, 64, 50, 64, Mask::full, 0},
                          {3, 1, 70, 70, 24, Mask::per_example, 0.2f}}) {
      int64_t query = c.batch * c.queries * c.heads * c.head_dim, key = c.batch * c.keys * c.heads * c.head_dim;
      std::vector<uint8_t> flags = {1, 0, 1};
      AttentionShape shape{.batch = c.batch, .heads = c.heads, .query_length = c.queries, .key_length = c.keys,
                           .head_dim = c.head_dim, .mask = c.mask,
                           .flags = c.mask == Mask::per_example ? device::view(flags.data(), c.batch) : View{},
                           .dropout = c.dropout, .stream = base::Stream(4, "weights")};
      std::vector<float> lse(size_t(c.batch * c.heads * c.queries));
      View lse_view = device::view(lse.data(), int64_t(lse.size()));
      Both q(query, "q"), k(key, "k"), v(key, "v"), o(query);
      for (DType t : {DType::f32, DType::bf16})
        run(AttentionForward{.o = o.view(t), .lse = lse_view, .q = q.view(t), .k = k.view(t), .v = v.view(t), .shape = shape},
            queue);
      o.expect_rounded("o");
      Both d_o(query, "d_o"), dq(query), dk(key), dv(key);
      for (size_t i = 0; i < o.wide.size(); ++i) o.wide[i] = loops::to_float(loops::Bf16{o.narrow[i]});
      for (DType t : {DType::f32, DType::bf16})
        run(AttentionBackward{.dq = dq.view(t), .dk = dk.view(t), .dv = dv.view(t), .d_o = d_o.view(t), .q = q.view(t),
                              .k = k.view(t), .v = v.view(t), .o = o.view(t), .lse = lse_view, .shape = shape},
            queue);
      dq.expect_rounded("dq"), dk.expect_rounded("dk"), dv.expect_rounded("dv");
    }
  });
}

TEST(Bf16Activations, TypesMustAgree) {
  Both x(8, "x"), y(8);
  EXPECT_ERROR(check(GeluForward{.y = y.view(DType::f32), .x = x.view(DType::bf16)}), "gelu_forward: y holds f32, not bf16");
  EXPECT_ERROR(check(Dropout{.y = y.view(DType::bf16), .x = x.view(DType::f32), .stream = {}}), "dropout: y holds bf16, not f32");
  AttentionShape shape{.batch = 1, .heads = 1, .query_length = 2, .key_length = 2, .head_dim = 4};
  EXPECT_ERROR(check(AttentionForward{.o = y.view(DType::bf16), .q = x.view(DType::bf16), .k = x.view(DType::f32),
                                      .v = x.view(DType::bf16), .shape = shape}),
               "attention_forward: k holds f32, not bf16");
}

}  // namespace
