// SPDX-License-Identifier: Apache-2.0
// Runs every loop of a table on fixed inputs, and hashes what it writes.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "base/random.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels::digests {

// Elements at a multiple of 64 bytes, with room for a whole vector behind the last.
template <class T>
class Array {
 public:
  explicit Array(int64_t count) : count_(count) {
    const size_t bytes = (size_t(count) * sizeof(T) + 191) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    std::memset(data_.get(), 0, bytes);
  }
  T* data() const { return data_.get(); }
  T& operator[](int64_t i) const { return data_.get()[i]; }
  int64_t size() const { return count_; }
  operator T*() const { return data(); }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  int64_t count_;
};

// FNV-1a, 64 bit. All values that are not a number count as one: processors choose their sign and
// digits.
class Digest {
 public:
  template <class T>
  void add(const T* p, int64_t count) {
    for (int64_t i = 0; i < count; ++i) add_one(p[i]);
  }
  template <class T>
  void add(const Array<T>& a) {
    add(a.data(), a.size());
  }
  uint64_t value() const { return hash_; }

 private:
  void add_one(double x) { bytes(x != x ? 0x7FF8000000000000u : std::bit_cast<uint64_t>(x)); }
  void add_one(float x) { bytes(x != x ? 0x7FC00000u : std::bit_cast<uint32_t>(x)); }
  void add_one(uint16_t x) { bytes(x); }  // loops store one NaN in bf16
  void add_one(uint8_t x) { bytes(x); }
  template <class Bits>
  void bytes(Bits bits) {
    for (size_t i = 0; i < sizeof(Bits); ++i)
      hash_ = (hash_ ^ uint8_t(bits >> 8 * i)) * 0x100000001b3ull;
  }
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

// Which special values an array has.
enum class Odd { none, few, many };

// Numbers within (-4, 4); each third one is 30 times as large if `wide`. Odd::many: each seventh is
// a special value. Odd::few: only one near the end is.
template <class T>
Array<T> numbers(int64_t count, uint64_t name, Odd odd = Odd::none, bool wide = false) {
  // The last two are halfway between numbers of bf16.
  const float special[] = {0.0f,     -0.0f,     1e-41f, 3e38f,       -3e38f,
                           INFINITY, -INFINITY, NAN,    1 + 0x1p-8f, 1 + 0x3p-8f};
  const base::Stream stream = base::Stream(48, "loops").sub(name);
  Array<T> out(count);
  for (int64_t i = 0; i < count; ++i) {
    float x = stream.uniform(uint64_t(2 * i)) + stream.uniform(uint64_t(2 * i + 1)) - 1;
    x = x * (wide && i % 3 == 0 ? 120.0f : 4.0f);
    const bool is_odd = odd == Odd::many ? i % 7 == 5 : odd == Odd::few && i == count * 7 / 8;
    if (is_odd) x = special[(stream.bits(uint64_t(2 * i)) >> 5) % 10];
    if constexpr (sizeof(T) == sizeof(float))
      out[i] = x;
    else
      out[i] = uint16_t(x != x ? 0x7FC0u : std::bit_cast<uint32_t>(x) >> 16);
  }
  return out;
}

// One rounding within a polynomial, or within a sum of squares, changes few results. So such loops
// get many numbers or rows.
constexpr int64_t kMany = 100000;

using Digests = std::map<std::string, Digest>;

template <class T>
class LoopDigests {
 public:
  LoopDigests(const VectorTable& table, Digests& to) : loops_(loops_of(table)), to_(to) {}

  void add_all() {
    for (const int64_t n : {1, 7, 8, 15, 16, 17, 40, 63, 1003})
      for (const Odd odd : {Odd::none, Odd::few, Odd::many}) {
        elements(n, odd);
        rows(n, odd);
        pool(n, odd);
        batch_norm(n, odd);
      }
    elements(kMany, Odd::none);
    for (const int64_t n : {33, 64, 100}) products(n);
    using Size = std::array<int64_t, 3>;  // queries, keys, width
    for (const Size& size : {Size{1, 1, 8},
                             {7, 13, 24},
                             {19, 19, 32},
                             {64, 64, 64},
                             {50, 50, 20},
                             {97, 101, 48},
                             {3, 0, 16}})
      for (const Odd odd : {Odd::none, Odd::few}) {
        decode(size[1], size[2], odd);
        for (const bool causal : {false, true})
          for (const float rate : {0.0f, 0.25f})
            if (!causal || size[0] == size[1]) attention(size, causal, rate, odd);
      }
    if (loops_.add_tile) panels();
  }

 private:
  static const ActivationLoops<T>& loops_of(const VectorTable& table) {
    if constexpr (sizeof(T) == sizeof(float))
      return table.f32;
    else
      return table.bf16;
  }
  Digest& of(const char* loop) {
    return to_[std::string(loop) + (sizeof(T) == sizeof(float) ? " f32" : " bf16")];
  }

  void elements(int64_t n, Odd odd) {
    const auto x = numbers<T>(n, 1, odd, true), dy = numbers<T>(n, 2, odd);
    Array<T> y(n);
    loops_.gelu_forward(y, x, n);
    of("gelu_forward").add(y);
    loops_.gelu_backward(y, dy, x, n);
    of("gelu_backward").add(y);
    for (const uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 34) - 3}) {
      loops_.dropout(
          {.y = y, .x = x, .count = n, .first = first, .key = 0x123456789abcdef0u, .rate = 0.3f});
      of("dropout").add(y);
    }
  }

  void rows(int64_t n, Odd odd) {
    constexpr int64_t kRows = 64;
    const auto x = numbers<float>(kRows * n, 3, odd), scale = numbers<float>(n, 4),
               bias = numbers<float>(n, 5);
    const auto stored = numbers<T>(kRows * n, 6, odd);
    Array<T> y(kRows * n);
    Array<float> mean(kRows), rstd(kRows), sums(n);
    for (const float* b : {bias.data(), static_cast<float*>(nullptr)}) {
      loops_.layer_norm_forward({.y = y,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .x = x,
                                 .scale = scale,
                                 .bias = b,
                                 .rows = kRows,
                                 .columns = n,
                                 .eps = 1e-6f});
      Digest& d = of("layer_norm_forward");
      d.add(y);
      d.add(mean);
      d.add(rstd);
    }
    loops_.add_rows(sums, stored, kRows, n);
    of("add_rows").add(sums);
  }

  void products(int64_t n) {
    constexpr int64_t kRows = 19, kDepth = 37;
    const auto a = numbers<float>(kRows * kDepth, 7);
    const auto stored = numbers<T>(kRows * kDepth, 7), b = numbers<T>(kDepth * n, 8, Odd::few);
    Array<float> sums(kRows * n);
    loops_.row_product({.sums = sums,
                        .a = a,
                        .stored = stored,
                        .b = b,
                        .rows = kRows,
                        .columns = n,
                        .k = kDepth,
                        .n = n,
                        .stride = n});
    of("row_product").add(sums);
  }

  void attention(const std::array<int64_t, 3>& size, bool causal, float rate, Odd odd) {
    const int64_t queries = size[0], keys = size[1], width = size[2], stride = width + 3;
    const auto q = numbers<T>(queries * stride, 10), k = numbers<T>(keys * stride, 11, odd),
               v = numbers<T>(keys * stride, 12, odd), d_o = numbers<T>(queries * stride, 13);
    Array<T> o(queries * stride), dq(queries * stride), dk(keys * stride), dv(keys * stride);
    Array<float> lse(queries);
    AttentionHead<T> h{};
    h.q = q;
    h.k = k;
    h.v = v;
    h.o = o;
    h.d_o = d_o;
    h.dq = dq;
    h.dk = dk;
    h.dv = dv;
    h.lse = lse;
    h.query_length = queries;
    h.key_length = keys;
    h.head_dim = width;
    h.stride = stride;
    h.causal = causal;
    h.dropout = rate;
    h.key = 77;
    h.first_draw = 9;
    Array<float> scratch(loops_.attention_forward_scratch(queries, keys, width) +
                         loops_.attention_backward_scratch(queries, keys, width));
    loops_.attention_forward(h, scratch);
    of("attention_forward").add(o);
    of("attention_forward").add(lse);
    loops_.attention_backward(h, scratch);
    for (const auto* gradient : {&dq, &dk, &dv}) of("attention_backward").add(*gradient);
  }

  void decode(int64_t keys, int64_t width, Odd odd) {
    if (keys == 0) return;
    const auto q = numbers<T>(width, 14), k = numbers<T>(keys * width, 15, odd),
               v = numbers<T>(keys * width, 16, odd);
    Array<float> scratch(keys + width + 64);
    Array<T> o(width);
    DecodeHead<T> h{};
    h.o = o;
    h.q = q;
    h.k = k;
    h.v = v;
    h.keys = keys;
    h.head_dim = h.stride = width;
    loops_.decode_attention(h, scratch);
    of("decode_attention").add(o);
  }

  void batch_norm(int64_t n, Odd odd) {
    constexpr int64_t kRows = 19;
    const auto x = numbers<T>(kRows * n, 20, odd), dy = numbers<T>(kRows * n, 21, odd),
               before = numbers<T>(kRows * n, 22, odd);
    const auto factor = numbers<float>(n, 23), shift = numbers<float>(n, 24);
    // Streamed rows are whole lines of the caches.
    for (const bool streams : {false, n % 32 == 0})
      for (const bool relu : {false, true})
        for (const bool shortcut : {false, true}) {
          Array<T> y(kRows * n);
          BatchNormRows<T> rows{};
          rows.y = y;
          rows.x = x;
          rows.shortcut = dy;
          rows.factor = factor;
          rows.shift = shift;
          if (shortcut) {
            rows.shortcut_factor = shift;
            rows.shortcut_shift = factor;
          }
          rows.rows = kRows;
          rows.columns = n;
          rows.relu = relu;
          rows.streams = streams;
          loops_.batch_norm_forward(rows);
          of("batch_norm_forward").add(y);

          BatchNormGradientRows<T> back{};
          back.dx = y;
          back.dy = dy;
          back.x = x;
          back.factor = back.slope = factor;
          back.shift = back.offset = shift;
          back.rows = kRows;
          back.columns = n;
          back.relu = relu;
          back.streams = streams;
          loops_.batch_norm_backward(back);
          of("batch_norm_backward").add(y);

          Array<double> first(n + 16), second(n + 16);
          BatchNormGradientSumRows<T> sums{};
          sums.g = shortcut ? y.data() : nullptr;
          sums.dy = dy;
          sums.x = x;
          sums.add = shortcut ? before.data() : nullptr;
          sums.y = streams ? before.data() : nullptr;
          sums.mean = shift;
          sums.factor = factor;
          sums.shift = shift;
          sums.first = first;
          sums.second = second;
          sums.rows = kRows;
          sums.columns = n;
          sums.relu = relu;
          loops_.batch_norm_gradient_sums(sums);
          of("batch_norm_gradient_sums").add(y);
          of("batch_norm_gradient_sums").add(first.data(), n);
          of("batch_norm_gradient_sums").add(second.data(), n);
        }
    Array<double> first(n + 16), second(n + 16);
    loops_.batch_norm_sums({.x = x, .first = first, .second = second, .rows = kRows, .columns = n});
    of("batch_norm_sums").add(first.data(), n);
    of("batch_norm_sums").add(second.data(), n);
  }

  void pool(int64_t n, Odd odd) {
    const auto x = numbers<T>(4 * n, 30, odd), dy = numbers<T>(4 * n, 31, odd);
    Array<T> y(n);
    Array<uint8_t> place(4 * n);
    for (int64_t i = 0; i < 4 * n; ++i) place[i] = uint8_t(i * 7 % 5);
    loops_.max_pool_backward({.dx = y,
                              .dy = dy,
                              .place = place,
                              .rows = 2,
                              .columns = 2,
                              .count = n,
                              .row_step = 2 * n,
                              .column_step = n,
                              .first_place = 4,
                              .row_places = 2,
                              .column_places = 1});
    of("max_pool_backward").add(y);
    loops_.max_pool_forward({.y = y,
                             .place = place,
                             .x = x,
                             .rows = 2,
                             .columns = 2,
                             .count = n,
                             .row_step = 2 * n,
                             .column_step = n,
                             .first_place = 1,
                             .places = 3});
    of("max_pool_forward").add(y);
    of("max_pool_forward").add(place.data(), n);
  }

  void panels() {
    constexpr int64_t kSteps = 21, kWidth = 3 * kPanelColumns, kRows = kSteps * kRowsOfStep<T>,
                      kSize = kRows * kPanelColumns;
    const auto x = numbers<T>(kRows * kWidth, 40, Odd::few);
    std::array<const T*, kRows> rows;
    for (int64_t i = 0; i < kRows; ++i) rows[size_t(i)] = x + i * kWidth;
    Array<T> packed(3 * kSize);
    loops_.pack_panels({.panel = packed,
                        .rows = rows.data(),
                        .size = kSize,
                        .first = 0,
                        .panels = 3,
                        .steps = kSteps});
    of("pack_panels").add(packed);
    auto sums = numbers<float>(kPanelColumns * 2 * kPanelColumns, 41);
    for (const bool add : {true, false, true})
      for (const int64_t panels : {1, 2}) {
        loops_.add_tile({.sums = sums,
                         .dy = packed,
                         .x = packed + kSize,
                         .stride = 2 * kPanelColumns,
                         .size = kSize,
                         .panels = panels,
                         .steps = kSteps,
                         .add = add,
                         .later = nullptr,
                         .later_count = 0});
        of("add_tile").add(sums);
      }
  }

  const ActivationLoops<T>& loops_;
  Digests& to_;
};

inline void add_softmax(const VectorTable& table, int64_t n, Odd odd, bool wide, Digest& d) {
  const auto x = numbers<float>(n, 50, odd, wide);
  for (const float off : {0.0f, 0.01f})
    for (const bool gradient : {false, true})
      for (const int64_t label : {n / 2, int64_t{-1}}) {
        Array<float> logits(n);
        std::memcpy(logits, x, size_t(n) * sizeof(float));
        const float loss = table.softmax_xent_row({.logits = logits,
                                                   .columns = n,
                                                   .label = label,
                                                   .on = 0.9f,
                                                   .off = off,
                                                   .gradient = gradient,
                                                   .scale = 0.37f,
                                                   .next = nullptr});
        d.add(&loss, 1);
        d.add(logits);
      }
}

inline void add_layer_norm(const VectorTable& table, int64_t n, Odd odd, Digest& d) {
  constexpr int64_t kRows = 31;
  const auto x = numbers<float>(kRows * n, 51, odd), dy = numbers<float>(kRows * n, 52, odd),
             scale = numbers<float>(n, 53), mean = numbers<float>(kRows, 54),
             rstd = numbers<float>(kRows, 55);
  for (const bool add : {false, true}) {
    auto dx = numbers<float>(kRows * n, 56), dscale = numbers<float>(n, 57),
         dbias = numbers<float>(n, 58);
    table.layer_norm_backward({.dx = dx,
                               .dscale = add ? nullptr : dscale.data(),
                               .dbias = dbias,
                               .dy = dy,
                               .x = x,
                               .mean = mean,
                               .rstd = rstd,
                               .scale = scale,
                               .rows = kRows,
                               .columns = n,
                               .add_dx = add});
    d.add(dx);
    d.add(dscale);
    d.add(dbias);
  }
}

inline void add_convolution(const VectorTable& table, Digest& d) {
  constexpr int64_t kIn = 5, kTaps = 2;
  const auto pixels = numbers<float>(kTilePositions * kIn, 61),
             weight = numbers<float>(kTaps * kIn * kTileOutputs, 62);
  std::array<const float*, kTaps * kTilePositions> at;
  for (size_t i = 0; i < at.size(); ++i) at[i] = pixels + int64_t(i) % kTilePositions * kIn;
  Array<float> y(kTilePositions * kTileOutputs);
  for (const int64_t positions : {int64_t{5}, kTilePositions}) {
    table.convolve_tile({.y = y,
                         .x = at.data(),
                         .weight = weight,
                         .stride = kTileOutputs,
                         .positions = positions,
                         .taps = kTaps,
                         .in = kIn});
    d.add(y);
  }
}

// Returns the digest of each loop that the table has.
inline Digests digests_of(const VectorTable& table) {
  Digests out;
  LoopDigests<float>(table, out).add_all();
  LoopDigests<uint16_t>(table, out).add_all();
  for (const int64_t n : {1, 7, 8, 15, 16, 17, 40, 63, 1003, 2500})
    for (const Odd odd : {Odd::none, Odd::few, Odd::many}) {
      const auto x = numbers<float>(n, 59, odd, true);
      const auto narrow = numbers<uint16_t>(n, 60, odd);
      Array<float> y(n);
      Array<uint16_t> bits(n);
      table.to_bf16(bits, x, n);
      out["to_bf16"].add(bits);
      table.from_bf16(y, narrow, n);
      out["from_bf16"].add(y);
      table.exp_of(y, x, n);
      out["exp_of"].add(y);
      for (const bool wide : {false, true})  // one number makes the sum of wide ones
        add_softmax(table, n, odd, wide, out["softmax_xent_row"]);
      add_layer_norm(table, n, odd, out["layer_norm_backward"]);
    }
  Array<float> powers(kMany);
  table.exp_of(powers, numbers<float>(kMany, 63), kMany);
  out["exp_of"].add(powers);
  if (table.convolve_tile) add_convolution(table, out["convolve_tile"]);
  return out;
}

}  // namespace kernels::digests
