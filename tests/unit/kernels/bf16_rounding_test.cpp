// SPDX-License-Identifier: Apache-2.0
// Tests the places where bf16 values are rounded. Operands are small whole numbers, so every sum is
// exact in f32 and its order changes nothing. Each result is then one definite number on any CPU.
// With bf16 instructions (AMX included) and without, an op must give it bit for bit. One rounding
// too many, too few or elsewhere would show.
#include "kernels/attention.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"
#include "narrow_type.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

// Runs the test with bf16 instructions, if this CPU has them, and without.
template <class F>
void both_ways(const F& body) {
  for (bool emulated : bf16_ways()) {
    seams::force_bf16_emulation(emulated);
    SCOPED_TRACE(emulated ? "emulated" : bf16_is_native() ? "native" : "no bf16 instructions here");
    body();
  }
  seams::force_bf16_emulation(false);
}

float rounded(float x) { return widened(narrowed(x)); }

// Numbers in either type: whole numbers times `unit`.
struct Matrix {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
  DType type;
  Matrix(std::vector<float> values, DType t)
      : wide(std::move(values)), narrow(narrowed(wide)), type(t) {}
  static Matrix whole(int64_t count, const std::string& name, DType type, int64_t most = 4,
                      float unit = 1) {
    std::vector<float> values;
    for (int32_t i : integers(count, -most, most + 1, name)) values.push_back(float(i) * unit);
    Matrix m(values, type);
    for (size_t i = 0; i < values.size(); ++i)
      CHECK(m.at(int64_t(i)) == values[i], "{} is not exact", values[i]);
    return m;
  }
  View view() const {  // a test writes only through views of results
    auto* self = const_cast<Matrix*>(this);
    return type == DType::bf16 ? narrow_view(self->narrow)
                               : device::view(self->wide.data(), int64_t(wide.size()));
  }
  float at(int64_t i) const {
    return type == DType::bf16 ? widened(narrow[size_t(i)]) : wide[size_t(i)];
  }
  void expect(const std::vector<float>& wanted, const char* what) const {
    for (size_t i = 0; i < wanted.size(); ++i)
      ASSERT_EQ(at(int64_t(i)), wanted[i]) << what << "[" << i << "]";
  }
};

struct Product {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false, bias = false, residual = false, accumulate = false,
       gelu = false, gelu_of = false;
  DType result = DType::bf16;
};

// Returns sums of products, which must be exact.
std::vector<float> sums_of(const Product& p, const Matrix& a, const Matrix& b) {
  std::vector<float> out;
  std::vector<float> left, right;  // rows of a, columns of b
  for (int64_t i = 0; i < p.m * p.k; ++i)
    left.push_back(a.at(p.trans_a ? i % p.k * p.m + i / p.k : i));
  for (int64_t i = 0; i < p.n * p.k; ++i)
    right.push_back(b.at(p.trans_b ? i : i % p.k * p.n + i / p.k));
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < p.k; ++t)
        sum += double(left[size_t(i * p.k + t)]) * double(right[size_t(j * p.k + t)]);
      CHECK(double(float(sum)) == sum, "{} is no float", sum);
      out.push_back(float(sum));
    }
  return out;
}

// Returns the sums plus their addends, rounded once if the result is bf16.
std::vector<float> result_of(const Product& p, std::vector<float> sums, const Matrix& c,
                             const Matrix& bias, const Matrix& residual) {
  for (int64_t i = 0; i < p.m * p.n; ++i) {
    double sum = double(sums[size_t(i)]);
    if (p.accumulate) sum += double(c.at(i));
    if (p.bias) sum += double(bias.at(i % p.n));
    if (p.residual) sum += double(residual.at(i));
    CHECK(double(float(sum)) == sum, "{} is no float", sum);
    sums[size_t(i)] = p.result == DType::bf16 ? rounded(float(sum)) : float(sum);
  }
  return sums;
}

void check(const Product& p, const Matrix& a, const Matrix& b, const std::vector<float>& sums,
           bool fixed_order) {
  SCOPED_TRACE(
      fmt::format("{} x {} x {} to {}: trans {} {} bias {} residual {} accumulate {} gelu {} {}, "
                  "fixed order {}",
                  p.m, p.n, p.k, device::name_of(p.result), p.trans_a, p.trans_b, p.bias,
                  p.residual, p.accumulate, p.gelu, p.gelu_of, fixed_order));
  TestQueue queue(2, fixed_order);
  Matrix c = Matrix::whole(p.m * p.n, "c", p.result),
         bias = Matrix::whole(p.n, "bias", p.result, 100, 0.125f);
  Matrix residual = Matrix::whole(p.m * p.n, "residual", DType::f32, 2000, 0x1p-9f);
  Matrix gelu(std::vector<float>(size_t(p.m * p.n)), p.result),
      x(normals(p.m * p.n, "x"), p.result);
  std::vector<float> wanted = result_of(p, sums, c, bias, residual);
  Gemm g{.c = c.view(),
         .a = a.view(),
         .b = b.view(),
         .m = p.m,
         .n = p.n,
         .k = p.k,
         .trans_a = p.trans_a,
         .trans_b = p.trans_b};
  if (p.bias) g.bias = bias.view();
  if (p.residual) g.residual = residual.view();
  if (p.accumulate) g.write = Write::accumulate;
  if (p.gelu) g.gelu = gelu.view();
  if (p.gelu_of) g.gelu_of = x.view();
  run(g, queue);
  Matrix expected(wanted, p.result), of_gelu = gelu;
  if (p.gelu_of) {
    // The derivative multiplies the rounded result.
    run(GeluBackward{.dx = expected.view(), .dy = expected.view(), .x = x.view()}, queue);
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = expected.at(int64_t(i));
  }
  c.expect(wanted, "c");
  if (!p.gelu) return;
  run(GeluForward{.y = of_gelu.view(), .x = expected.view()}, queue);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = of_gelu.at(int64_t(i));
  gelu.expect(wanted, "gelu");
}

void check_all_forms(int64_t m, int64_t n, int64_t k) {
  const Matrix a = Matrix::whole(m * k, "a", DType::bf16),
               b = Matrix::whole(k * n, "b", DType::bf16);
  for (int trans = 0; trans < 4; ++trans) {
    Product p{.m = m, .n = n, .k = k, .trans_a = (trans & 1) != 0, .trans_b = (trans & 2) != 0};
    const std::vector<float> sums = sums_of(p, a, b);
    for (bool fixed_order : {false, true}) {
      auto with = [&](auto change) {
        for (DType result : {DType::bf16, DType::f32}) {
          Product q = p;
          q.result = result;
          if (change(q)) check(q, a, b, sums, fixed_order);
        }
      };
      both_ways([&] {
        for (bool bias : {false, true})
          for (bool residual : {false, true})
            with([&](Product& q) {
              q.bias = bias;
              q.residual = residual;
              return true;
            });
        with([&](Product& q) {
          q.accumulate = true;
          return q.result == DType::f32;
        });
        for_each_table([&] {
          with([&](Product& q) { return q.bias = q.gelu = true; });
          with([&](Product& q) { return q.gelu_of = true; });
        });
      });
    }
  }
}

TEST(Bf16Rounding, ProductsRoundTheirResultsOnce) {
  if (on_cuda()) return;
  for (auto [m, n, k] : {std::array<int64_t, 3>{5, 7, 3}, {33, 48, 65}, {450, 24, 33}})
    check_all_forms(m, n, k);
}

// Among products that run together, the second reads the rounded result of the first, and the third
// adds to the second.
TEST(Bf16Rounding, ProductsByRows) {
  if (on_cuda()) return;
  both_ways([] {
    for (auto [m, width, hidden] : {std::array<int64_t, 3>{9, 8, 12}, {450, 40, 72}})
      for (bool fixed_order : {false, true}) {
        TestQueue queue(2, fixed_order);
        Matrix a = Matrix::whole(m * width, "a", DType::bf16),
               up = Matrix::whole(width * hidden, "up", DType::bf16);
        Matrix down = Matrix::whole(hidden * width, "down", DType::bf16), none({}, DType::f32);
        Matrix residual = Matrix::whole(m * width, "residual", DType::f32, 100, 0.125f);
        Matrix h(std::vector<float>(size_t(m * hidden)), DType::bf16),
            y(std::vector<float>(size_t(m * width)), DType::f32);
        Gemm first{.c = h.view(), .a = a.view(), .b = up.view(), .m = m, .n = hidden, .k = width};
        Gemm second{.c = y.view(),
                    .a = h.view(),
                    .b = down.view(),
                    .residual = residual.view(),
                    .m = m,
                    .n = width,
                    .k = hidden};
        Gemm third{.c = y.view(),
                   .a = h.view(),
                   .b = down.view(),
                   .m = m,
                   .n = width,
                   .k = hidden,
                   .write = Write::accumulate};
        const Gemm all[] = {first, second, third};
        run_by_rows(all, queue);
        std::vector<float> wanted =
            result_of({.m = m, .n = hidden, .k = width},
                      sums_of({.m = m, .n = hidden, .k = width}, a, up), none, none, none);
        h.expect(wanted, "hidden");
        Product p{.m = m, .n = width, .k = hidden, .residual = true, .result = DType::f32};
        const std::vector<float> sums = sums_of(p, h, down);
        Matrix once(result_of(p, sums, none, none, residual), DType::f32);
        p.residual = false;
        p.accumulate = true;
        y.expect(result_of(p, sums, once, none, none), "output");
      }
  });
}

// Tests attention with two queries and two keys. Each sum over them is one addition, which rounds
// alike in any order. Products read rounded values: weights before their division, normalised
// weights, and gradients of scores.
struct Attention {
  static constexpr int64_t kBatch = 3, kHeads = 5, kLength = 2, kWidth = 16;
  std::vector<uint8_t> flags = {1, 0, 1};
  Mask mask;
  Matrix q = whole("q", 2), k = whole("k", 2), v = whole("v", 1), d_o = whole("d_o", 3);
  Matrix o = nothing(), dq = nothing(), dk = nothing(), dv = nothing();
  std::vector<float> lse = std::vector<float>(size_t(kBatch * kHeads * kLength));

  static constexpr int64_t kCount = kBatch * kLength * kHeads * kWidth;
  static Matrix whole(const std::string& name, int64_t most) {
    return Matrix::whole(kCount, name, DType::bf16, most);
  }
  static Matrix nothing() { return {std::vector<float>(size_t(kCount)), DType::bf16}; }
  // Values are in {1, 2, 3}. Without cancellation, outputs have few bits, and so have their
  // products with gradients.
  explicit Attention(Mask m) : mask(m) {
    for (uint16_t& x : v.narrow) x = narrowed(widened(x) + 2);
  }
  static int64_t at(int64_t b, int64_t h, int64_t row) {
    return ((b * kLength + row) * kHeads + h) * kWidth;
  }
  static float dot(const Matrix& x, int64_t i, const Matrix& y, int64_t j) {
    double sum = 0;
    for (int64_t d = 0; d < kWidth; ++d) sum += double(x.at(i + d)) * double(y.at(j + d));
    CHECK(double(float(sum)) == sum, "{} is no float", sum);
    return float(sum);
  }
  static float exp_of(float x) {
    vector_table().exp_of(&x, &x, 1);
    return x;
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    return j <= i || mask == Mask::full || (mask == Mask::per_example && !flags[size_t(b)]);
  }

  void run_ops(TestQueue& queue) {
    AttentionShape shape{.batch = kBatch,
                         .heads = kHeads,
                         .query_length = kLength,
                         .key_length = kLength,
                         .head_dim = kWidth,
                         .mask = mask};
    if (mask == Mask::per_example) shape.flags = device::view(flags.data(), kBatch);
    const View l = device::view(lse.data(), int64_t(lse.size()));
    run(
        AttentionForward{
            .o = o.view(), .lse = l, .q = q.view(), .k = k.view(), .v = v.view(), .shape = shape},
        queue);
    run(AttentionBackward{.dq = dq.view(),
                          .dk = dk.view(),
                          .dv = dv.view(),
                          .d_o = d_o.view(),
                          .q = q.view(),
                          .k = k.view(),
                          .v = v.view(),
                          .o = o.view(),
                          .lse = l,
                          .shape = shape},
        queue);
  }

  void expect_head(int64_t b, int64_t h) const {
    const float scale = 0.25f;  // 1 / sqrt(kWidth)
    float dk_sum[kLength][kWidth] = {}, dv_sum[kLength][kWidth] = {};
    for (int64_t i = 0; i < kLength; ++i) {
      const int64_t row = at(b, h, i);
      float score[kLength], largest = -INFINITY, sum = 0, e[kLength] = {}, dq_sum[kWidth] = {},
                            out[kWidth] = {};
      for (int64_t j = 0; j < kLength; ++j)
        if (sees(b, i, j)) {
          score[j] = dot(q, row, k, at(b, h, j));
          largest = std::max(largest, score[j] * scale);
        }
      for (int64_t j = 0; j < kLength; ++j)
        if (sees(b, i, j)) {
          e[j] = exp_of(std::fma(score[j], scale, -largest));
          sum += e[j];
        }
      for (int64_t j = 0; j < kLength; ++j)
        for (int64_t d = 0; d < kWidth; ++d) out[d] += rounded(e[j]) * v.at(at(b, h, j) + d);
      for (int64_t d = 0; d < kWidth; ++d)
        ASSERT_EQ(o.at(row + d), rounded(out[d] * (1 / sum))) << "o";
      const float l = float(double(largest) + std::log(double(sum)));
      ASSERT_EQ(lse[size_t((b * kHeads + h) * kLength + i)], l);
      for (int64_t j = 0; j < kLength; ++j) {
        if (!sees(b, i, j)) continue;
        const int64_t key = at(b, h, j);
        const float p = exp_of(std::fma(score[j], scale, -l)),
                    d_score = rounded(p * (dot(d_o, row, v, key) - dot(d_o, row, o, row)));
        for (int64_t d = 0; d < kWidth; ++d) {
          dq_sum[d] += d_score * k.at(key + d);
          dk_sum[j][d] += d_score * q.at(row + d);
          dv_sum[j][d] += rounded(p) * d_o.at(row + d);
        }
      }
      for (int64_t d = 0; d < kWidth; ++d)
        ASSERT_EQ(dq.at(row + d), rounded(dq_sum[d] * scale)) << "dq";
    }
    for (int64_t j = 0; j < kLength; ++j)
      for (int64_t d = 0; d < kWidth; ++d) {
        ASSERT_EQ(dk.at(at(b, h, j) + d), rounded(dk_sum[j][d] * scale)) << "dk";
        ASSERT_EQ(dv.at(at(b, h, j) + d), rounded(dv_sum[j][d])) << "dv";
      }
  }
};

TEST(Bf16Rounding, AttentionRoundsWeightsAndGradientsOfScores) {
  if (on_cuda()) return;
  both_ways([] {
    for (Mask mask : {Mask::full, Mask::causal, Mask::per_example}) {
      for_each_table([&] {
        TestQueue queue;
        Attention a(mask);
        a.run_ops(queue);
        for (int64_t b = 0; b < Attention::kBatch; ++b)
          for (int64_t h = 0; h < Attention::kHeads; ++h) a.expect_head(b, h);
      });
    }
  });
}

}  // namespace
