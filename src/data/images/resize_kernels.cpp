// SPDX-License-Identifier: Apache-2.0
// The resize methods besides plain bilinear. Each repeats the order of float operations of
// TensorFlow's CPU kernel (core/kernels/image: resize_nearest_neighbor, resize_bicubic,
// resize_area, scale_and_translate), so that truncation to u8 falls on the same side.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/elementary.hpp"
#include "base/error.hpp"
#include "data/images/decode.hpp"
#include "data/images/resize.hpp"

// Products must not be fused with sums, as in resize.cpp.

namespace data {
namespace {

int64_t bounded(int64_t value, int64_t limit) {
  return std::min(limit - 1, std::max<int64_t>(0, value));
}

template <class T>
T pixel_of(float value) {
  if constexpr (std::is_same_v<T, uint8_t>)
    return uint8_t(int32_t(std::min(std::max(value, 0.0f), 255.0f)));
  else
    return value;
}

struct Shape {
  int64_t in_height, in_width, height, width, channels;
};

template <class T>
void nearest(const T* in, const Shape& s, T* out) {
  float y_scale = float(s.in_height) / float(s.height),
        x_scale = float(s.in_width) / float(s.width);
  auto source = [](int64_t i, float scale, int64_t limit) {
    return std::min(int64_t(std::floor((float(i) + 0.5f) * scale)), limit - 1);
  };
  for (int64_t y = 0; y < s.height; ++y) {
    const T* row = in + source(y, y_scale, s.in_height) * s.in_width * s.channels;
    for (int64_t x = 0; x < s.width; ++x) {
      const T* pixel = row + source(x, x_scale, s.in_width) * s.channels;
      for (int64_t c = 0; c < s.channels; ++c) *out++ = pixel[c];
    }
  }
}

// ---- bicubic: Keys' kernel (a = -1/2) from a table of 1024 steps; points outside the image have
// no weight.

struct CubicTap {
  std::array<int64_t, 4> index;
  std::array<float, 4> weight;
};

const std::vector<float>& cubic_table() {
  static const std::vector<float> table = [] {
    constexpr double a = -0.5;
    std::vector<float> t(1025 * 2);
    for (size_t i = 0; i <= 1024; ++i) {
      float x = float(double(i) / 1024);
      t[i * 2] = float(((a + 2) * x - (a + 3)) * x * x + 1);
      x = float(x + 1.0);
      t[i * 2 + 1] = float(((a * x - 5 * a) * x + 8 * a) * x - 4 * a);
    }
    return t;
  }();
  return table;
}

std::vector<CubicTap> cubic_taps(int64_t in, int64_t out) {
  const std::vector<float>& table = cubic_table();
  std::vector<CubicTap> taps(static_cast<size_t>(out));
  float scale = float(in) / float(out);
  for (int64_t i = 0; i < out; ++i) {
    CubicTap& t = taps[size_t(i)];
    float centre = (float(i) + 0.5f) * scale - 0.5f;
    int64_t base = int64_t(std::floor(centre));
    size_t offset = size_t(std::lrint((centre - float(base)) * 1024.0f));
    const std::array<float, 4> full = {table[offset * 2 + 1], table[offset * 2],
                                       table[(1024 - offset) * 2], table[(1024 - offset) * 2 + 1]};
    for (size_t k = 0; k < 4; ++k) {
      int64_t wanted = base - 1 + int64_t(k);
      t.index[k] = bounded(wanted, in);
      t.weight[k] = t.index[k] == wanted ? full[k] : 0.0f;
    }
    float sum = t.weight[0] + t.weight[1] + t.weight[2] + t.weight[3];
    if (std::abs(sum) >= 1000.0f * std::numeric_limits<float>::min())
      for (float& w : t.weight) w *= 1.0f / sum;
  }
  return taps;
}

template <class T>
void bicubic(const T* in, const Shape& s, T* out) {
  std::vector<CubicTap> xs = cubic_taps(s.in_width, s.width),
                        ys = cubic_taps(s.in_height, s.height);
  std::vector<float> line(size_t(s.in_width * s.channels));
  auto mix = [](const CubicTap& t, auto at) {
    return at(0) * t.weight[0] + at(1) * t.weight[1] + at(2) * t.weight[2] + at(3) * t.weight[3];
  };
  for (const CubicTap& ty : ys) {
    const T* rows[4];
    for (size_t k = 0; k < 4; ++k) rows[k] = in + ty.index[k] * s.in_width * s.channels;
    for (size_t i = 0; i < line.size(); ++i)
      line[i] = mix(ty, [&](size_t k) { return float(rows[k][i]); });
    for (const CubicTap& tx : xs)
      for (int64_t c = 0; c < s.channels; ++c)
        *out++ = pixel_of<T>(
            mix(tx, [&](size_t k) { return line[size_t(tx.index[k] * s.channels + c)]; }));
  }
}

// ---- area: each output pixel is the mean of the input area it covers.

struct AreaSpan {
  int64_t start, end;       // input pixels [start, end)
  std::vector<float> part;  // covered part of each pixel
};

std::vector<AreaSpan> area_spans(int64_t out, float scale) {
  std::vector<AreaSpan> spans(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) {
    float from = float(i) * scale, to = float(i + 1) * scale;
    AreaSpan& s = spans[size_t(i)];
    s.start = int64_t(std::floor(from));
    s.end = int64_t(std::ceil(to));
    for (int64_t v = s.start; v < s.end; ++v) {
      bool ends_after = float(v + 1) > to;
      s.part.push_back(float(v) < from ? (ends_after ? scale : float(v + 1) - from)
                                       : (ends_after ? to - float(v) : 1.0f));
    }
  }
  return spans;
}

template <class T>
void area(const T* in, const Shape& s, T* out) {
  float y_scale = float(s.in_height) / float(s.height),
        x_scale = float(s.in_width) / float(s.width);
  std::vector<AreaSpan> xs = area_spans(s.width, x_scale), ys = area_spans(s.height, y_scale);
  float scale = float(1.0 / double(y_scale * x_scale));
  for (const AreaSpan& y : ys)
    for (const AreaSpan& x : xs)
      for (int64_t c = 0; c < s.channels; ++c) {
        float sum = 0;
        for (size_t i = 0; i < y.part.size(); ++i) {
          const T* row = in + bounded(y.start + int64_t(i), s.in_height) * s.in_width * s.channels;
          float row_sum = 0;
          for (size_t j = 0; j < x.part.size(); ++j)
            row_sum +=
                float(row[bounded(x.start + int64_t(j), s.in_width) * s.channels + c]) * x.part[j];
          sum += row_sum * y.part[i];
        }
        *out++ = pixel_of<T>(sum * scale);
      }
}

// ---- all other methods: a kernel sampled around each output point, with normalised weights.

struct Kernel {
  float radius;
  float (*value)(float x);  // x >= 0
};

template <int kRadius>
float lanczos(float x) {
  constexpr float kPi = 3.14159265359f, r = kRadius;
  if (x > r) return 0;
  if (x <= 1e-3f) return 1;
  return r * base::math::sin(kPi * x) * base::math::sin(kPi * x / r) / (kPi * kPi * x * x);
}
float gaussian(float x) {
  return x >= 1.5f ? 0.0f : float(base::math::exp(double(-x * x) / (2.0 * 0.5 * 0.5)));
}
float triangle(float x) { return x < 1 ? 1 - x : 0.0f; }
float keys_cubic(float x) {
  if (x >= 2) return 0;
  if (x >= 1) return ((-0.5f * x + 2.5f) * x - 4.0f) * x + 2.0f;
  return ((1.5f * x - 2.5f) * x) * x + 1.0f;
}
float mitchell_cubic(float x) {  // Mitchell and Netravali, SIGGRAPH 1988, B = C = 1/3
  if (x >= 2) return 0;
  if (x >= 1) return (((-7.0f / 18.0f) * x + 2.0f) * x - 10.0f / 3.0f) * x + 16.0f / 9.0f;
  return (((7.0f / 6.0f) * x - 2.0f) * x) * x + 8.0f / 9.0f;
}

Kernel kernel_of(ResizeMethod method) {
  switch (method) {
    case ResizeMethod::bilinear:
      return {1, triangle};
    case ResizeMethod::bicubic:
      return {2, keys_cubic};
    case ResizeMethod::lanczos3:
      return {3, lanczos<3>};
    case ResizeMethod::lanczos5:
      return {5, lanczos<5>};
    case ResizeMethod::gaussian:
      return {1.5f, gaussian};
    case ResizeMethod::mitchellcubic:
      return {2, mitchell_cubic};
    default:
      break;
  }
  CHECK(false, "no sampling kernel for this method");
  return {};
}

struct Span {
  int64_t start = 0;
  std::vector<float> weights;
};

std::vector<Span> spans_of(const Kernel& kernel, int64_t in, int64_t out, bool antialias) {
  float scale = float(out) / float(in), inverse = float(1.0 / double(scale));
  float widen = antialias ? std::max(inverse, 1.0f) : 1.0f, narrow = 1.0f / widen;
  std::vector<Span> spans(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) {
    float centre = (float(i) + 0.5f) * inverse, reach = kernel.radius * widen;
    if (centre < 0 || centre > float(in)) continue;
    Span& s = spans[size_t(i)];
    s.start = bounded(int64_t(std::ceil(centre - reach - 0.5f)), in);
    int64_t end = bounded(int64_t(std::floor(centre + reach - 0.5f)), in) + 1;
    float sum = 0;
    for (int64_t k = s.start; k < end; ++k) {
      s.weights.push_back(kernel.value(std::abs((float(k) + 0.5f - centre) * narrow)));
      sum += s.weights.back();
    }
    bool usable = std::abs(sum) >= 1000.0f * std::numeric_limits<float>::min();
    for (float& w : s.weights) w = usable ? w * (1.0f / sum) : 0.0f;
  }
  return spans;
}

template <class T>
void sampled(const T* in, const Shape& s, const Kernel& kernel, bool antialias, T* out) {
  std::vector<Span> ys = spans_of(kernel, s.in_height, s.height, antialias),
                    xs = spans_of(kernel, s.in_width, s.width, antialias);
  int64_t row = s.in_width * s.channels;
  std::vector<float> line(static_cast<size_t>(row)), pixel(size_t(s.channels));
  for (const Span& y : ys) {  // rows first, then columns
    std::fill(line.begin(), line.end(), 0.0f);
    for (size_t k = 0; k < y.weights.size(); ++k) {
      const T* from = in + (y.start + int64_t(k)) * row;
      for (int64_t i = 0; i < row; ++i) line[size_t(i)] += y.weights[k] * float(from[i]);
    }
    for (const Span& x : xs) {
      std::fill(pixel.begin(), pixel.end(), 0.0f);
      const float* from = line.data() + x.start * s.channels;
      for (float w : x.weights)
        for (int64_t c = 0; c < s.channels; ++c) pixel[size_t(c)] += w * *from++;
      for (float v : pixel) *out++ = pixel_of<T>(v);
    }
  }
}

template <class T>
void resize_by(ResizeMethod method, bool antialias, const T* in, const Shape& s, T* out) {
  if (method == ResizeMethod::nearest) return nearest(in, s, out);
  if (method == ResizeMethod::area) return area(in, s, out);
  if (method == ResizeMethod::bicubic && !antialias) return bicubic(in, s, out);
  sampled(in, s, kernel_of(method), antialias, out);
}

}  // namespace

std::vector<std::string> resize_method_names() {
  return {"bilinear", "nearest",  "bicubic",  "area",
          "lanczos3", "lanczos5", "gaussian", "mitchellcubic"};
}

ResizeMethod resize_method_named(std::string_view name) {
  std::vector<std::string> names = resize_method_names();
  auto it = std::find(names.begin(), names.end(), name);
  CHECK(it != names.end(), "no resize method {}", name);
  return ResizeMethod(it - names.begin());
}

Array resize(const Array& in, int64_t height, int64_t width, ResizeMethod method, bool antialias) {
  check_image(in);
  check_image_size("resized", width, height);
  if (in.shape[0] == height && in.shape[1] == width) return in;
  if (method == ResizeMethod::bilinear && !antialias) return resize_bilinear(in, height, width);
  Shape s{in.shape[0], in.shape[1], height, width, in.shape[2]};
  Array out(in.type, {height, width, in.shape[2]});
  if (in.type == device::DType::u8)
    resize_by(method, antialias, in.u8(), s, out.u8());
  else
    resize_by(method, antialias, in.f32(), s, out.f32());
  return out;
}

}  // namespace data
