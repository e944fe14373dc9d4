// SPDX-License-Identifier: Apache-2.0
#include "data/images/resize.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"

// Every product and sum is rounded on its own, as in the published code. A fused operation would
// move pixels across the truncation.

namespace data {
namespace {

// The two input coordinates around an output coordinate, with the weight between them.
struct Tap {
  int64_t low, high;
  float weight;  // weight of `high`
};

std::vector<Tap> taps(int64_t in, int64_t out) {
  std::vector<Tap> t(size_t(out), Tap{});
  float scale = float(in) / float(out);
  for (int64_t i = 0; i < out; ++i) {
    float centre = (float(i) + 0.5f) * scale - 0.5f, floor = std::floor(centre);
    t[size_t(i)] = {std::max(int64_t(floor), int64_t{0}),
                    std::min(int64_t(std::ceil(centre)), in - 1), centre - floor};
  }
  return t;
}

// Resamples one input row along x. `out` may be written up to kSpare floats beyond its end.
constexpr int64_t kSpare = 8;

template <class T>
class Columns {
 public:
  Columns(int64_t in, int64_t out, int64_t channels) : taps_(taps(in, out)), channels_(channels) {}

  void resample(const T* in, float* out) const {
    for (const Tap& t : taps_)
      for (int64_t c = 0; c < channels_; ++c) {
        float low = float(in[t.low * channels_ + c]), high = float(in[t.high * channels_ + c]);
        *out++ = low + (high - low) * t.weight;
      }
  }

 private:
  std::vector<Tap> taps_;
  int64_t channels_;
};

template <class To>
To load(const void* p) {
  To v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
void store(const T& v, void* p) {
  std::memcpy(p, &v, sizeof v);
}

// Vectors for two pixels; the fourth value of each pixel is unused.
using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));
using Octets = uint8_t __attribute__((vector_size(32)));
using Words = uint64_t __attribute__((vector_size(16)));
using FourWords = uint64_t __attribute__((vector_size(32)));

// Returns four bytes from `k` on of each half, as numbers. Each byte is spread over a lane of its
// own, where all copies but one are cleared.
template <int k>
Floats widened(Octets both) {
  constexpr int h = k + 16;
  Octets spread =
      __builtin_shufflevector(both, both, k, k, k, k, k + 1, k + 1, k + 1, k + 1, k + 2, k + 2,
                              k + 2, k + 2, k + 3, k + 3, k + 3, k + 3, h, h, h, h, h + 1, h + 1,
                              h + 1, h + 1, h + 2, h + 2, h + 2, h + 2, h + 3, h + 3, h + 3, h + 3);
  return __builtin_convertvector(reinterpret_cast<Ints>(spread) & 255, Floats);
}

// Resamples RGB in bytes, the format of nearly all images, two output pixels at a time. A load at
// the left neighbour also gets the right neighbour. If the right neighbour would be beyond the row,
// its weight is 0.
class RgbColumns {
 public:
  RgbColumns(int64_t in, int64_t out) : pairs_(size_t(out + 1) / 2) {
    std::vector<Tap> all = taps(in, out);
    for (size_t i = 0; i < all.size(); ++i) {
      const Tap& t = all[i];
      Pair& pair = pairs_[i / 2];
      pair.at[i % 2] = t.low * 3;
      for (size_t k = 0; k < 4; ++k) pair.weight[i % 2 * 4 + k] = t.high > t.low ? t.weight : 0.0f;
    }
  }

  void resample(const uint8_t* in, float* out) const {
    for (const Pair& pair : pairs_) {
      Words a = load<Words>(in + pair.at[0]), b = load<Words>(in + pair.at[1]);
      Octets both = reinterpret_cast<Octets>(FourWords{a[0], a[1], b[0], b[1]});
      Floats low = widened<0>(both), high = widened<3>(both);
      Floats value = low + (high - low) * load<Floats>(pair.weight);
      store(__builtin_shufflevector(value, value, 0, 1, 2, 4, 5, 6, 6, 6), out);
      out += 6;
    }
  }

 private:
  struct Pair {
    int64_t at[2] = {0, 0};  // byte offsets
    float weight[8] = {};
  };
  std::vector<Pair> pairs_;
};

void blend(const float* top, const float* bottom, float weight, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = top[i] + (bottom[i] - top[i]) * weight;
}
void blend(const float* top, const float* bottom, float weight, int64_t count, uint8_t* out) {
  // The result lies between two bytes, apart from rounding, so it needs no clipping before
  // truncation.
  for (int64_t i = 0; i < count; ++i)
    out[i] = uint8_t(int32_t(top[i] + (bottom[i] - top[i]) * weight));
}

template <class RowResampler, class T>
void resize_image(const T* in, const RowResampler& columns, const std::vector<int64_t>& from,
                  int64_t height, int64_t width, T* out) {
  int64_t in_row = from[1] * from[2], row = width * from[2];
  // The two resampled rows in use, by input row. Neighbouring output rows often share them.
  std::vector<float> rows[2];
  int64_t held[2] = {-1, -1};
  for (auto& r : rows) r.resize(size_t(row + kSpare));
  auto row_of = [&](int64_t number, int64_t other) {
    int slot = held[0] == number ? 0 : held[1] == number ? 1 : held[0] == other ? 1 : 0;
    if (held[slot] != number) {
      columns.resample(in + number * in_row, rows[slot].data());
      held[slot] = number;
    }
    return rows[slot].data();
  };
  for (const Tap& t : taps(from[0], height)) {
    const float* top = row_of(t.low, t.high);
    const float* bottom = row_of(t.high, t.low);
    blend(top, bottom, t.weight, row, out);
    out += row;
  }
}

}  // namespace

void check_image(const Array& in) {
  if (in.shape.size() != 3 || in.count() == 0)
    base::fail(base::Exit::data, "an array {} is not an image [height, width, channels]",
               text_of(in.shape));
}

Array crop(const Array& in, int64_t y, int64_t x, int64_t height, int64_t width) {
  check_image(in);
  CHECK(y >= 0 && x >= 0 && height > 0 && width > 0 && y + height <= in.shape[0] &&
            x + width <= in.shape[1],
        "a crop of {} x {} at {}, {} from {}", height, width, y, x, text_of(in.shape));
  Array out(in.type, {height, width, in.shape[2]});
  size_t pixel = size_t(in.shape[2] * device::size_of(in.type)), row = size_t(width) * pixel;
  const uint8_t* from = in.bytes.data() + (size_t(y * in.shape[1] + x)) * pixel;
  for (int64_t i = 0; i < height; ++i)
    std::memcpy(out.bytes.data() + size_t(i) * row, from + size_t(i * in.shape[1]) * pixel, row);
  return out;
}

Array resize_bilinear(const Array& in, int64_t height, int64_t width) {
  check_image(in);
  int64_t in_width = in.shape[1], channels = in.shape[2];
  if (in.shape[0] == height && in_width == width) return in;
  Array out(in.type, {height, width, channels});
  if (in.type == device::DType::f32)
    resize_image(in.f32(), Columns<float>(in_width, width, channels), in.shape, height, width,
                 out.f32());
  else if (channels == 3)
    resize_image(in.u8(), RgbColumns(in_width, width), in.shape, height, width, out.u8());
  else
    resize_image(in.u8(), Columns<uint8_t>(in_width, width, channels), in.shape, height, width,
                 out.u8());
  return out;
}

}  // namespace data
