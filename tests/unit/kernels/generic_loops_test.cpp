// SPDX-License-Identifier: Apache-2.0
// Compares the vector loops in plain C++, which other processors run, with those for AVX2. Loops
// that name each fused operation must give the same bits. In other formulas the compiler chooses
// what it fuses, so their results may differ by rounding.
#ifdef __x86_64__

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

template <class T>
const ActivationLoops<T>& loops(const VectorTable& table) {
  if constexpr (sizeof(T) == sizeof(float))
    return table.f32;
  else
    return table.bf16;
}

// special: some numbers are zeros, infinite, denormal or not a number. Each third one is `large`
// times as large.
template <class T>
std::vector<T> numbers(int64_t count, unsigned seed, bool special = false, float large = 30) {
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal;
  const float odd[] = {0.0f, -0.0f, 1e-41f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN};
  std::vector<float> out(size_t(count), 0);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = special && i % 8 == 5 ? odd[draw() % 8] : normal(draw) * (i % 3 ? 1.0f : large);
  if constexpr (sizeof(T) == sizeof(float)) return out;
  std::vector<T> as(size_t(count), T{});
  if constexpr (sizeof(T) != sizeof(float)) kAvx2Table.to_bf16(as.data(), out.data(), count);
  return as;
}

// `run(table, out)` fills an array of this many elements with each table; the bits must be equal.
template <class Out, class F>
void expect_equal(const char* what, int64_t count, const F& run) {
  std::vector<Out> expected(size_t(count), Out{}), found(size_t(count), Out{});
  run(kAvx2Table, expected.data());
  run(kGenericTable, found.data());
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(std::memcmp(&expected[i], &found[i], sizeof(Out)), 0)
        << what << ", element " << i << " of " << count << ": " << +expected[i] << ", generic "
        << +found[i];
}

float value(float x) { return x; }
float value(uint16_t x) { return __builtin_bit_cast(float, uint32_t{x} << 16); }

// Like expect_equal, for loops in which the compiler chooses what it fuses. The elements may differ
// by this share of the largest one.
template <class Out, class F>
void expect_near(const char* what, int64_t count, float share, const F& run) {
  std::vector<Out> expected(size_t(count), Out{}), found(size_t(count), Out{});
  run(kAvx2Table, expected.data());
  run(kGenericTable, found.data());
  float largest = 0;
  for (const Out x : expected)
    if (std::isfinite(value(x))) largest = std::max(largest, std::abs(value(x)));
  for (size_t i = 0; i < expected.size(); ++i) {
    const float wanted = value(expected[i]), is = value(found[i]);
    const bool same = wanted == is || (std::isnan(wanted) && std::isnan(is));
    ASSERT_TRUE(same || std::abs(wanted - is) <= share * largest)
        << what << ", element " << i << " of " << count << ": " << wanted << ", generic " << is;
  }
}

template <class T>
constexpr float kRounding = sizeof(T) == sizeof(float) ? 1e-6f : 1.0f / 256;

const int64_t kCounts[] = {1, 7, 8, 9, 40, 1003};

template <class T>
class GenericLoops : public testing::Test {};
using Types = testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(GenericLoops, Types);

TYPED_TEST(GenericLoops, Elements) {
  using T = TypeParam;
  for (int64_t n : kCounts) {
    const auto x = numbers<T>(n, 1, true), dy = numbers<T>(n, 2);
    expect_near<T>("gelu", n, kRounding<T>,
                   [&](const VectorTable& t, T* y) { loops<T>(t).gelu_forward(y, x.data(), n); });
    expect_near<T>("gelu backward", n, kRounding<T>, [&](const VectorTable& t, T* y) {
      loops<T>(t).gelu_backward(y, dy.data(), x.data(), n);
    });
    expect_equal<T>("dropout", n, [&](const VectorTable& t, T* y) {
      loops<T>(t).dropout(
          {.y = y, .x = x.data(), .count = n, .first = 6, .key = 0x123456789abcdefu, .rate = 0.3f});
    });
  }
}

TYPED_TEST(GenericLoops, Rows) {
  using T = TypeParam;
  for (int64_t n : kCounts) {
    const auto x = numbers<float>(4 * n, 1), scale = numbers<float>(n, 3);
    const auto stored = numbers<T>(4 * n, 2);
    expect_near<T>("layer norm", 4 * n, kRounding<T>, [&](const VectorTable& t, T* y) {
      std::vector<float> moments(8);
      loops<T>(t).layer_norm_forward({.y = y,
                                      .mean = moments.data(),
                                      .rstd = moments.data() + 4,
                                      .x = x.data(),
                                      .scale = scale.data(),
                                      .bias = scale.data(),
                                      .rows = 4,
                                      .columns = n,
                                      .eps = 1e-6f});
    });
    expect_equal<float>("mean", 4, [&](const VectorTable& t, float* mean) {
      std::vector<T> y(size_t(4 * n), T{});
      std::vector<float> rstd(4);
      loops<T>(t).layer_norm_forward({.y = y.data(),
                                      .mean = mean,
                                      .rstd = rstd.data(),
                                      .x = x.data(),
                                      .scale = scale.data(),
                                      .bias = nullptr,
                                      .rows = 4,
                                      .columns = n,
                                      .eps = 1e-6f});
    });
    expect_equal<float>("sums of rows", n, [&](const VectorTable& t, float* sums) {
      loops<T>(t).add_rows(sums, stored.data(), 4, n);
    });
    expect_equal<float>("products of rows", 10 * n, [&](const VectorTable& t, float* sums) {
      const auto a = numbers<float>(10 * 5, 4);
      const auto b = numbers<T>(5 * n, 5), a_stored = numbers<T>(10 * 5, 4);
      loops<T>(t).row_product({.sums = sums,
                               .a = a.data(),
                               .stored = a_stored.data(),
                               .b = b.data(),
                               .rows = 10,
                               .columns = n,
                               .k = 5,
                               .n = n,
                               .stride = n});
    });
  }
}

TYPED_TEST(GenericLoops, Attention) {
  using T = TypeParam;
  for (const auto& size :
       {std::array<int64_t, 3>{1, 1, 8}, {7, 13, 24}, {19, 19, 32}, {17, 33, 20}}) {
    const int64_t queries = size[0], keys = size[1], width = size[2];  // lambdas capture them
    const auto q = numbers<T>(queries * width, 1, false, 1),
               k = numbers<T>(keys * width, 2, false, 1);
    const auto v = numbers<T>(keys * width, 3, false, 1),
               d_o = numbers<T>(queries * width, 4, false, 1);
    for (const bool causal : {false, true})
      for (const float rate : {0.0f, 0.25f}) {
        const int64_t count = 2 * queries * width + 2 * keys * width;
        expect_near<T>("attention", count, 10 * kRounding<T>, [&](const VectorTable& t, T* out) {
          std::vector<float> lse(size_t(queries), 0);
          AttentionHead<T> h{};
          h.q = q.data();
          h.k = k.data();
          h.v = v.data();
          h.o = out;
          h.lse = lse.data();
          h.d_o = d_o.data();
          h.dq = out + queries * width;
          h.dk = h.dq + queries * width;
          h.dv = h.dk + keys * width;
          h.query_length = queries;
          h.key_length = keys;
          h.head_dim = h.stride = width;
          h.causal = causal && queries == keys;
          h.dropout = rate;
          h.key = 77;
          const auto& by = loops<T>(t);
          std::vector<float> scratch(size_t(by.attention_forward_scratch(queries, keys, width) +
                                            by.attention_backward_scratch(queries, keys, width)));
          by.attention_forward(h, scratch.data());
          by.attention_backward(h, scratch.data());
        });
      }
    expect_near<T>("attention of one query", width, kRounding<T>, [&](const VectorTable& t, T* o) {
      std::vector<float> scratch(size_t(keys + width + 64));
      DecodeHead<T> h{};
      h.o = o;
      h.q = q.data();
      h.k = k.data();
      h.v = v.data();
      h.keys = keys;
      h.head_dim = h.stride = width;
      loops<T>(t).decode_attention(h, scratch.data());
    });
  }
}

TYPED_TEST(GenericLoops, BatchNorm) {
  using T = TypeParam;
  for (int64_t n : {16, 48, 1008}) {  // rows are whole vectors
    const auto x = numbers<T>(3 * n, 1), dy = numbers<T>(3 * n, 2), y_before = numbers<T>(3 * n, 3);
    const auto factor = numbers<float>(n, 4), shift = numbers<float>(n, 5);
    for (const bool relu : {false, true}) {
      expect_near<T>("batch norm", 3 * n, kRounding<T>, [&](const VectorTable& t, T* y) {
        BatchNormRows<T> rows{};
        rows.y = y;
        rows.x = x.data();
        rows.shortcut = dy.data();
        rows.factor = factor.data();
        rows.shift = shift.data();
        rows.rows = 3;
        rows.columns = n;
        rows.relu = relu;
        loops<T>(t).batch_norm_forward(rows);
      });
      expect_near<T>("batch norm backward", 3 * n, kRounding<T>, [&](const VectorTable& t, T* dx) {
        BatchNormGradientRows<T> rows{};
        rows.dx = dx;
        rows.dy = dy.data();
        rows.x = x.data();
        rows.factor = rows.slope = factor.data();
        rows.shift = rows.offset = shift.data();
        rows.rows = 3;
        rows.columns = n;
        rows.relu = relu;
        loops<T>(t).batch_norm_backward(rows);
      });
      expect_equal<double>("sums of gradients", 2 * n, [&](const VectorTable& t, double* sums) {
        BatchNormGradientSumRows<T> rows{};
        rows.dy = dy.data();
        rows.y = y_before.data();
        rows.x = x.data();
        rows.mean = rows.shift = shift.data();
        rows.factor = factor.data();
        rows.first = sums;
        rows.second = sums + n;
        rows.rows = 3;
        rows.columns = n;
        rows.relu = relu;
        loops<T>(t).batch_norm_gradient_sums(rows);
      });
    }
    expect_equal<double>("sums", 2 * n, [&](const VectorTable& t, double* sums) {
      loops<T>(t).batch_norm_sums(
          {.x = x.data(), .first = sums, .second = sums + n, .rows = 3, .columns = n});
    });
  }
}

TYPED_TEST(GenericLoops, MaxPool) {
  using T = TypeParam;
  for (int64_t n : kCounts) {
    const auto x = numbers<T>(4 * n, 1, true), dy = numbers<T>(n, 2);
    std::vector<uint8_t> place(size_t(n), 0);
    expect_equal<T>("max pool", n, [&](const VectorTable& t, T* y) {
      loops<T>(t).max_pool_forward({.y = y,
                                    .place = place.data(),
                                    .x = x.data(),
                                    .rows = 2,
                                    .columns = 2,
                                    .count = n,
                                    .row_step = 2 * n,
                                    .column_step = n,
                                    .first_place = 1,
                                    .places = 3});
    });
    expect_equal<T>("max pool backward", n, [&](const VectorTable& t, T* dx) {
      loops<T>(t).max_pool_backward({.dx = dx,
                                     .dy = dy.data(),
                                     .place = place.data(),
                                     .rows = 1,
                                     .columns = 1,
                                     .count = n,
                                     .row_step = n,
                                     .column_step = n,
                                     .first_place = 2,
                                     .row_places = 3,
                                     .column_places = 1});
    });
  }
}

TEST(GenericLoops, LoopsOfFloats) {
  for (int64_t n : kCounts) {
    const auto x = numbers<float>(4 * n, 1, true), dy = numbers<float>(4 * n, 2);
    const auto finite = numbers<float>(4 * n, 3);
    expect_equal<float>("exp", n,
                        [&](const VectorTable& t, float* y) { t.exp_of(y, x.data(), n); });
    expect_equal<uint16_t>("to bf16", n,
                           [&](const VectorTable& t, uint16_t* y) { t.to_bf16(y, x.data(), n); });
    const auto narrow = numbers<uint16_t>(n, 4, true);
    expect_equal<float>("from bf16", n,
                        [&](const VectorTable& t, float* y) { t.from_bf16(y, narrow.data(), n); });
    expect_near<float>("softmax", n + 1, kRounding<float>, [&](const VectorTable& t, float* out) {
      std::memcpy(out, finite.data(), size_t(n) * sizeof(float));
      out[n] = t.softmax_xent_row({.logits = out,
                                   .columns = n,
                                   .label = n / 2,
                                   .on = 0.9f,
                                   .off = 0.1f,
                                   .gradient = true,
                                   .scale = 0.5f,
                                   .next = nullptr});
    });
    expect_near<float>("layer norm backward", 6 * n, kRounding<float>,
                       [&](const VectorTable& t, float* d) {
                         const float moments[4] = {0.1f, -0.2f, 0.3f, 1.5f};
                         t.layer_norm_backward({.dx = d,
                                                .dscale = d + 4 * n,
                                                .dbias = d + 5 * n,
                                                .dy = dy.data(),
                                                .x = finite.data(),
                                                .mean = moments,
                                                .rstd = moments,
                                                .scale = finite.data(),
                                                .rows = 4,
                                                .columns = n,
                                                .add_dx = false});
                       });
  }
}

TEST(GenericLoops, TiesOfBf16) {
  std::vector<float> x;  // halfway between two neighbours in bf16
  for (uint32_t i = 0; i < 16; ++i)
    x.push_back(__builtin_bit_cast(float, (0x3F80u + i) << 16 | 0x8000u));
  expect_equal<uint16_t>("ties", 16,
                         [&](const VectorTable& t, uint16_t* y) { t.to_bf16(y, x.data(), 16); });
}

TEST(GenericLoops, TilesOfConvolutions) {
  constexpr int64_t kIn = 5, kTaps = 2, kSteps = 9;
  const auto pixels = numbers<float>(kTilePositions * kIn, 1);
  const auto weight = numbers<float>(kTaps * kIn * kTileOutputs, 2);
  std::vector<const float*> at;
  for (int64_t i = 0; i < kTaps * kTilePositions; ++i)
    at.push_back(pixels.data() + i % kTilePositions * kIn);
  expect_equal<float>("convolution", 5 * kTileOutputs, [&](const VectorTable& t, float* y) {
    t.convolve_tile({.y = y,
                     .x = at.data(),
                     .weight = weight.data(),
                     .stride = kTileOutputs,
                     .positions = 5,
                     .taps = kTaps,
                     .in = kIn});
  });
  const auto rows = numbers<float>(kSteps * kPanelColumns, 3);
  std::vector<const float*> row;
  for (int64_t i = 0; i < kSteps; ++i) row.push_back(rows.data() + i * kPanelColumns);
  expect_equal<float>("gradient", kPanelColumns * kPanelColumns,
                      [&](const VectorTable& t, float* sums) {
                        std::vector<float> panel(size_t(kSteps * kPanelColumns));
                        t.f32.pack_panels({.panel = panel.data(),
                                           .rows = row.data(),
                                           .size = 0,
                                           .first = 0,
                                           .panels = 1,
                                           .steps = kSteps});
                        t.f32.add_tile({.sums = sums,
                                        .dy = panel.data(),
                                        .x = panel.data(),
                                        .stride = kPanelColumns,
                                        .size = 0,
                                        .panels = 1,
                                        .steps = kSteps,
                                        .add = false,
                                        .later = nullptr,
                                        .later_count = 0});
                      });
}

}  // namespace
}  // namespace kernels

#endif
