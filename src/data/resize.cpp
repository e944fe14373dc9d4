#include "data/resize.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"

// Every product and sum is rounded on its own, as in the published code: a fused one would move pixels across the
// truncation.
#pragma GCC optimize("fp-contract=off")

namespace data {
namespace {

// Where an output coordinate lies between two input coordinates.
struct Tap {
  int64_t low, high;
  float weight;  // of high
};

std::vector<Tap> taps(int64_t in, int64_t out) {
  std::vector<Tap> t(size_t(out), Tap{});
  float scale = float(in) / float(out);
  for (int64_t i = 0; i < out; ++i) {
    float centre = (float(i) + 0.5f) * scale - 0.5f, floor = std::floor(centre);
    t[size_t(i)] = {std::max(int64_t(floor), int64_t{0}), std::min(int64_t(std::ceil(centre)), in - 1), centre - floor};
  }
  return t;
}

using Four = float __attribute__((vector_size(16)));
Four load(const float* p) {
  Four v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// One input row, resampled along x. `wide` is scratch of width * channels + 4 floats, `out` has 4 floats to spare.
template <class T>
void resize_row(const T* in, int64_t in_width, int64_t channels, const std::vector<Tap>& x, float* wide, float* out) {
  for (int64_t i = 0; i < in_width * channels; ++i) wide[i] = float(in[i]);
  if (channels == 3) {  // four lanes at a time; the fourth is overwritten by the next pixel
    for (const Tap& t : x) {
      Four low = load(wide + t.low * 3), high = load(wide + t.high * 3), value = low + (high - low) * t.weight;
      std::memcpy(out, &value, sizeof value);
      out += 3;
    }
    return;
  }
  for (const Tap& t : x)
    for (int64_t c = 0; c < channels; ++c) {
      float low = wide[t.low * channels + c], high = wide[t.high * channels + c];
      *out++ = low + (high - low) * t.weight;
    }
}

void blend(const float* top, const float* bottom, float weight, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = top[i] + (bottom[i] - top[i]) * weight;
}
void blend(const float* top, const float* bottom, float weight, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    float value = top[i] + (bottom[i] - top[i]) * weight;
    out[i] = uint8_t(int32_t(std::min(std::max(value, 0.0f), 255.0f)));
  }
}

template <class T>
void resize_image(const T* in, int64_t in_height, int64_t in_width, int64_t channels, T* out, int64_t height,
                  int64_t width) {
  std::vector<Tap> x = taps(in_width, width), y = taps(in_height, height);
  // The two rows in use, by input row number; neighbouring output rows often share them.
  std::vector<float> wide(size_t(in_width * channels + 4)), rows[2];
  int64_t held[2] = {-1, -1};
  for (auto& row : rows) row.resize(size_t(width * channels + 4));
  auto row_of = [&](int64_t number, int64_t other) {
    int slot = held[0] == number ? 0 : held[1] == number ? 1 : held[0] == other ? 1 : 0;
    if (held[slot] != number) {
      resize_row(in + number * in_width * channels, in_width, channels, x, wide.data(), rows[slot].data());
      held[slot] = number;
    }
    return rows[slot].data();
  };
  for (int64_t i = 0; i < height; ++i) {
    const Tap& t = y[size_t(i)];
    const float* top = row_of(t.low, t.high);
    const float* bottom = row_of(t.high, t.low);
    blend(top, bottom, t.weight, width * channels, out + i * width * channels);
  }
}

}  // namespace

void check_image(const Array& in) {
  if (in.shape.size() != 3 || in.count() == 0)
    base::fail(base::Exit::data, "an array {} is not an image [height, width, channels]", text_of(in.shape));
}

Array crop(const Array& in, int64_t y, int64_t x, int64_t height, int64_t width) {
  check_image(in);
  CHECK(y >= 0 && x >= 0 && height > 0 && width > 0 && y + height <= in.shape[0] && x + width <= in.shape[1],
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
  int64_t in_height = in.shape[0], in_width = in.shape[1], channels = in.shape[2];
  if (in_height == height && in_width == width) return in;
  Array out(in.type, {height, width, channels});
  if (in.type == device::DType::u8)
    resize_image(in.u8(), in_height, in_width, channels, out.u8(), height, width);
  else
    resize_image(in.f32(), in_height, in_width, channels, out.f32(), height, width);
  return out;
}

}  // namespace data
