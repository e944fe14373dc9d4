// SPDX-License-Identifier: Apache-2.0
// Tests products that run together, block of rows by block of rows. They must have the bits of one
// after the other.
#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"
#include "narrow_type.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

// Operands of a layer's products: rows of a few widths, f32 or bf16.
struct Rows {
  DType type;
  int64_t m, width, hidden;
  std::vector<float> x, kernel, back, bias, residual;
  std::vector<uint16_t> x16, kernel16, back16, bias16;
  Rows(DType t, int64_t rows, int64_t w, int64_t h)
      : type(t),
        m(rows),
        width(w),
        hidden(h),
        x(normals(rows * w, "x")),
        kernel(normals(w * h, "kernel", 1 / std::sqrt(double(w)))),
        back(normals(h * w, "back", 1 / std::sqrt(double(h)))),
        bias(normals(h, "bias")),
        residual(normals(rows * w, "residual")),
        x16(narrowed(x)),
        kernel16(narrowed(kernel)),
        back16(narrowed(back)),
        bias16(narrowed(bias)) {}
  View of(std::vector<float>& wide, std::vector<uint16_t>& narrow) const {
    return type == DType::bf16 ? narrow_view(narrow)
                               : device::view(wide.data(), int64_t(wide.size()));
  }
};

// Results of the products: [m, hidden] twice, [m, width], and the first two in bf16.
struct Outputs {
  std::vector<float> a, b, c;
  std::vector<uint16_t> a16, b16;
  explicit Outputs(const Rows& r)
      : a(size_t(r.m * r.hidden), 7),
        b(a),
        c(size_t(r.m * r.width), 7),
        a16(a.size(), 7),
        b16(a.size(), 7) {}
};

// Runs `products(outputs)` one after the other and together, and compares the bits.
template <class Products>
void compare(const Rows& r, Queue& queue, const Products& products) {
  Outputs outputs[2]{Outputs(r), Outputs(r)};
  for (int together : {0, 1}) {
    const std::vector<Gemm> list = products(outputs[together]);
    reset_gemm_uses();
    if (together)
      run_by_rows(list, queue);
    else
      for (const Gemm& g : list) run(g, queue);
    int64_t calls = 0;
    for (const GemmUse& use : gemm_uses()) calls += use.calls;
    EXPECT_EQ(calls, int64_t(list.size())) << "number of counted calls";
  }
  const auto& [one, two] = outputs;
  EXPECT_TRUE(same_bits(one.a, two.a) && same_bits(one.b, two.b) && same_bits(one.c, two.c));
  EXPECT_TRUE(one.a16 == two.a16 && one.b16 == two.b16);
}

void check_rows(DType type, int64_t m, int threads, bool fixed, int64_t width = 48,
                int64_t hidden_width = 112) {
  Queue queue(device::Kind::cpu, threads, fixed);
  Rows r(type, m, width, hidden_width);
  const View x = r.of(r.x, r.x16), kernel = r.of(r.kernel, r.kernel16),
             back = r.of(r.back, r.back16);
  const View residual = device::view(r.residual.data(), m * r.width);
  auto hidden = [&](View c, View gelu) {
    const View bias =
        c.type == DType::bf16 ? narrow_view(r.bias16) : device::view(r.bias.data(), r.hidden);
    return Gemm{.c = c,
                .a = x,
                .b = kernel,
                .bias = bias,
                .m = m,
                .n = r.hidden,
                .k = r.width,
                .gelu = gelu};
  };
  // Several products read one input, as queries and keys do. Backward adds their gradients into
  // one.
  compare(r, queue, [&](Outputs& out) {
    auto sum = [&](Write write) {
      return Gemm{.c = device::view(out.c.data(), m * r.width),
                  .a = x,
                  .b = kernel,
                  .m = m,
                  .n = r.width,
                  .k = r.width,
                  .write = write,
                  .ldb = r.hidden};
    };
    return std::vector<Gemm>{hidden(device::view(out.a.data(), m * r.hidden), {}),
                             hidden(device::view(out.b.data(), m * r.hidden), {}),
                             sum(Write::overwrite), sum(Write::accumulate)};
  });
  // Columns of a wide matrix, as parts of an MLP use them.
  compare(r, queue, [&](Outputs& out) {
    auto part = [&](std::vector<float>& c, int64_t first) {
      return Gemm{.c = device::view(c.data(), m * 48),
                  .a = x,
                  .b = kernel.slice(first, kernel.count - first),
                  .m = m,
                  .n = 48,
                  .k = r.width,
                  .ldb = r.hidden};
    };
    return std::vector<Gemm>{part(out.a, 0), part(out.b, 48)};
  });
  // Through a hidden layer, the second product reads the GELU of the first.
  compare(r, queue, [&](Outputs& out) {
    const View inner = r.of(out.a, out.a16), gelu = r.of(out.b, out.b16);
    return std::vector<Gemm>{hidden(inner, gelu),
                             {.c = device::view(out.c.data(), m * r.width),
                              .a = gelu,
                              .b = back,
                              .residual = residual,
                              .m = m,
                              .n = r.width,
                              .k = r.hidden}};
  });
}

TEST(GemmByRows, IsOneAfterTheOther) {
  if (on_cuda()) GTEST_SKIP() << "on GPUs they run one after the other";
  for (bool emulated : bf16_ways()) {
    seams::force_bf16_emulation(emulated);
    for (DType type : {DType::f32, DType::bf16})
      for (int64_t m : {1, 150, 1000, 1337})
        for (int threads : thread_counts({1, 2, 3}))
          for (bool fixed : {false, true}) {
            SCOPED_TRACE(fmt::format("{} rows of {}, {} threads, fixed {}, emulated {}", m,
                                     device::name_of(type), threads, fixed, emulated));
            check_rows(type, m, threads, fixed);
            // With AVX2 and a fixed order, products with such lines are our own.
            if (fixed) check_rows(type, m, threads, fixed, 300, 1024);
          }
  }
  seams::force_bf16_emulation(false);
}

}  // namespace
