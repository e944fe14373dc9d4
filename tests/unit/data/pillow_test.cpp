// SPDX-License-Identifier: Apache-2.0
// Tests the exact transforms against plain loops that repeat the library's operations one by one
// (ssl.md 6.2, 6.3), for odd sizes and unusual values. Recorded bytes: tests/golden/ssl.
#include "data/images/pillow.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/random.hpp"
#include "data/images/random_box.hpp"

namespace data {
namespace {

using device::DType;
using pillow::Image;
using pillow::Planes;

// Noise with runs of equal, grey and extreme pixels.
Array picture(int64_t height, int64_t width, uint64_t seed) {
  Array a(DType::u8, {height, width, 3});
  base::Stream stream(seed, "picture");
  for (int64_t i = 0; i < a.count(); ++i) {
    const uint32_t bits = stream.bits(uint64_t(i));
    const uint32_t kind = stream.bits(uint64_t(i / 12)) % 8;
    a.u8()[i] = kind == 0 ? 0 : kind == 1 ? 255 : kind == 2 ? uint8_t(i / 12) : uint8_t(bits);
  }
  return a;
}

Image pixels_of(const Array& a) { return {a.view().u8(), a.shape[0], a.shape[1]}; }

void expect_equal(const Array& got, const Array& want, const std::string& what) {
  ASSERT_EQ(got.shape, want.shape) << what;
  for (int64_t i = 0; i < got.count(); ++i)
    ASSERT_EQ(int(got.u8()[i]), int(want.u8()[i])) << what << ", byte " << i;
}

// Applies f to a copy.
template <class F>
Array changed(const Array& a, const F& f) {
  Array copy = a;
  f(pixels_of(copy));
  return copy;
}
template <class F>
Array recoloured(const Array& a, const F& f) {
  return changed(a, [&](const Image& image) {
    Planes planes(image);
    f(planes);
    planes.store(image);
  });
}
// Applies f(pixel) to all pixels, three bytes each.
template <class F>
Array each_pixel(const Array& a, const F& f) {
  Array out = a;
  for (int64_t i = 0; i < out.count(); i += 3) f(out.u8() + i);
  return out;
}

// ---- resize

// Resizes along the rows of an image [lines, in, 3]; `across`: along its columns.
Array resized_axis(const Array& a, int64_t out, bool across) {
  const int64_t in = a.shape[across ? 0 : 1], lines = a.shape[across ? 1 : 0];
  if (in == out) return a;
  Array result(DType::u8,
               across ? std::vector<int64_t>{out, lines, 3} : std::vector<int64_t>{lines, out, 3});
  const volatile double scale = double(in) / double(out);
  const double reach = std::max(double(scale), 1.0);
  for (int64_t i = 0; i < out; ++i) {
    const volatile double centre = (double(i) + 0.5) * scale;
    const int64_t first = std::max(int64_t(centre - reach + 0.5), int64_t{0}),
                  end = std::min(int64_t(centre + reach + 0.5), in);
    std::vector<double> w;
    double sum = 0;
    for (int64_t k = first; k < end; ++k) {
      const volatile double distance = (double(k) - centre + 0.5) * (1 / reach);
      w.push_back(std::max(0.0, 1 - std::abs(distance)));
      sum += w.back();
    }
    for (int64_t line = 0; line < lines; ++line)
      for (int64_t c = 0; c < 3; ++c) {
        int64_t total = 1 << 21;
        for (int64_t k = first; k < end; ++k) {
          const volatile double part = w[size_t(k - first)] / sum;
          const volatile double scaled = part * (1 << 22);
          const int64_t at = across ? (k * lines + line) * 3 + c : (line * in + k) * 3 + c;
          total += int64_t(scaled + 0.5) * a.u8()[at];
        }
        const int64_t to = across ? (i * lines + line) * 3 + c : (line * out + i) * 3 + c;
        result.u8()[to] = uint8_t(std::clamp<int64_t>(total >> 22, 0, 255));
      }
  }
  return result;
}

Array resized_plainly(const Array& a, int64_t height, int64_t width) {
  const int64_t less = a.shape[0] - height;
  if (less > 0 && less > 2 * (a.shape[1] - width))
    return resized_axis(resized_axis(a, height, true), width, false);
  return resized_axis(resized_axis(a, width, false), height, true);
}

TEST(Pillow, ResizesAnyBoxToAnySize) {
  base::Stream draws(3, "sizes");
  for (uint64_t i = 0; i < 300; ++i) {
    const auto draw = [&, n = i * 16](uint64_t k, int64_t below) {
      return int64_t(draws.bits(n + k) % uint64_t(below));
    };
    const int64_t height = 1 + draw(0, 70), width = 1 + draw(1, 70);
    const Array a = picture(height, width, i);
    pillow::Box box{draw(2, height), draw(3, width), 0, 0};
    box.height = 1 + draw(4, height - box.y);
    box.width = 1 + draw(5, width - box.x);
    int64_t to_height = 1 + draw(6, 50), to_width = 1 + draw(7, 50);
    if (i % 5 == 0) to_height = box.height;  // one pass, or none
    if (i % 7 == 0) to_width = box.width;
    Array got(DType::u8, {to_height, to_width, 3}), cut(DType::u8, {box.height, box.width, 3});
    for (int64_t y = 0; y < box.height; ++y)
      std::memcpy(cut.u8() + y * box.width * 3, a.u8() + ((box.y + y) * width + box.x) * 3,
                  size_t(box.width * 3));
    pillow::resize(pixels_of(a), box, pixels_of(got));
    expect_equal(got, resized_plainly(cut, to_height, to_width),
                 fmt::format("{} x {} -> {} x {}", box.height, box.width, to_height, to_width));
  }
}

TEST(Pillow, MirrorsAnyWidth) {
  for (int64_t width = 1; width < 40; ++width) {
    const Array a = picture(3, width, uint64_t(width));
    Array want = a;
    for (int64_t y = 0; y < 3; ++y)
      for (int64_t x = 0; x < width; ++x)
        std::memcpy(want.u8() + (y * width + x) * 3, a.u8() + (y * width + width - 1 - x) * 3, 3);
    expect_equal(changed(a, pillow::mirror), want, fmt::format("width {}", width));
  }
}

// ---- filters

Array blurred(const Array& a, float radius) {
  const volatile float square = radius * radius;
  const volatile float variance = square / 3;
  const volatile float length = float(std::sqrt(12.0 * double(variance) + 1.0));
  const volatile float l = float(std::floor((double(length) - 1) / 2));
  const volatile float next = (l + 1) * (l + 1), own = l * (l + 1), triple = 3 * variance;
  const volatile float above = own - triple, below = variance - next;
  const volatile float product = (2 * l + 1) * above, six = 6 * below;
  const volatile float rest = product / six;
  const volatile float full = l + rest;
  const volatile float wide = full * 2 + 1;
  const int64_t k = int64_t(full), ww = int64_t(float(1 << 24) / wide),
                fw = ((1 << 24) - (2 * k + 1) * ww) / 2;
  Array from = a;
  for (int pass = 0; pass < 6; ++pass) {
    const bool across = pass >= 3;
    const int64_t n = a.shape[across ? 0 : 1], step = across ? a.shape[1] * 3 : 3;
    Array to = from;
    for (int64_t i = 0; i < a.count(); ++i) {
      const int64_t place = i / step % n;
      const auto at = [&](int64_t d) {
        const int64_t other = std::clamp<int64_t>(place + d, 0, n - 1);
        return int64_t(from.u8()[i + (other - place) * step]);
      };
      int64_t sum = 0;
      for (int64_t d = -k; d <= k; ++d) sum += at(d);
      to.u8()[i] = uint8_t((ww * sum + fw * (at(-k - 1) + at(k + 1)) + (1 << 23)) >> 24);
    }
    from = std::move(to);
  }
  return from;
}

TEST(Pillow, BlursWithAnyRadius) {
  for (float radius : {0.0f, 0.1f, 0.5f, 0.99f, 1.0f, 1.7f, 2.0f, 3.3f, 11.0f})
    for (auto [height, width] : {std::pair<int64_t, int64_t>{1, 1}, {1, 9}, {7, 1}, {23, 41}}) {
      const Array a = picture(height, width, 5);
      expect_equal(changed(a, [&](const Image& i) { pillow::gaussian_blur(i, radius); }),
                   blurred(a, radius), fmt::format("{} of {} x {}", radius, height, width));
    }
}

uint8_t blended_byte(int base, int byte, float factor) {
  const volatile float part = factor * float(byte - base);
  const float value = float(base) + part;
  return value <= 0 ? uint8_t(0) : value >= 255 ? uint8_t(255) : uint8_t(value);
}

TEST(Pillow, SharpensWithTheFloatsOfTheLibrary) {
  for (float factor : {0.1f, 1.0f, 1.9f})
    for (auto [height, width] : {std::pair<int64_t, int64_t>{1, 5}, {2, 2}, {3, 3}, {19, 33}}) {
      const Array a = picture(height, width, 6);
      Array want = a;
      const int64_t row = width * 3;
      const float side = 1.0f / 13, middle = 5.0f / 13;
      for (int64_t y = 1; y + 1 < height; ++y)
        for (int64_t i = 3; i < row - 3; ++i) {
          float sum = 0.5f;
          for (int64_t r : {1, 0, -1}) {
            const uint8_t* p = a.u8() + (y + r) * row + i;
            sum += float(p[-3]) * side + float(p[0]) * (r ? side : middle) + float(p[3]) * side;
          }
          want.u8()[y * row + i] = blended_byte(int(sum), a.u8()[y * row + i], factor);
        }
      expect_equal(changed(a, [&](const Image& i) { pillow::sharpness(i, factor); }), want,
                   fmt::format("{} of {} x {}", factor, height, width));
    }
}

// ---- colours

int luma_of(const uint8_t* p) {
  return int((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 32768u) >> 16);
}

TEST(Pillow, BlendsWithBlackMeanAndGrey) {
  for (auto [height, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {31, 47}, {300, 230}})
    for (float factor : {0.0f, 0.2f, 0.9999f, 1.0f, 1.37f, 1.8f}) {
      const Array a = picture(height, width, 8);
      const std::string what = fmt::format("{} of {} x {}", factor, height, width);
      int64_t sum = 0;
      for (int64_t i = 0; i < a.count(); i += 3) sum += luma_of(a.u8() + i);
      const int mean = int(double(sum) / double(height * width) + 0.5);
      const auto blended = [&](const auto& base) {
        return each_pixel(a, [&](uint8_t* p) {
          const int d = base(p);
          for (int c = 0; c < 3; ++c) p[c] = blended_byte(d, p[c], factor);
        });
      };
      expect_equal(recoloured(a, [&](Planes& p) { pillow::brightness(p, factor); }),
                   blended([](const uint8_t*) { return 0; }), "brightness " + what);
      expect_equal(recoloured(a, [&](Planes& p) { pillow::contrast(p, factor); }),
                   blended([&](const uint8_t*) { return mean; }), "contrast " + what);
      expect_equal(recoloured(a, [&](Planes& p) { pillow::saturation(p, factor); }),
                   blended(luma_of), "saturation " + what);
    }
}

// Turns the hue of one pixel with the types of the library's C code.
void turn_hue(uint8_t* p, int shift) {
  const int most = std::max({p[0], p[1], p[2]}), least = std::min({p[0], p[1], p[2]});
  uint8_t h = 0, s = 0;
  if (most != least) {
    const float range = float(most - least), part = range / float(most);
    const float rc = float(most - p[0]) / range, gc = float(most - p[1]) / range,
                bc = float(most - p[2]) / range;
    float angle = 0;
    if (p[0] == most)
      angle = bc - gc;
    else if (p[1] == most)
      angle = float(2.0 + double(rc) - double(bc));
    else
      angle = float(4.0 + double(gc) - double(rc));
    const volatile double sixth = double(angle) / 6.0;
    angle = float(std::fmod(sixth + 1.0, 1.0));
    h = uint8_t(int(double(angle) * 255.0));
    s = uint8_t(int(double(part) * 255.0));
  }
  h = uint8_t(h + shift);
  const uint8_t v = uint8_t(most);
  if (s == 0) {
    p[0] = p[1] = p[2] = v;
    return;
  }
  const int sector = int(std::floor(double(h) * 6.0 / 255.0));
  const float f = float(double(h) * 6.0 / 255.0 - double(float(sector))), fs = float(s / 255.0);
  const volatile float falling = fs * f;
  const volatile double rest = double(fs) * (1.0 - double(f));
  const auto level = [&](double x) { return uint8_t(std::round(double(v) * (1.0 - x))); };
  const uint8_t low = level(double(fs)), q = level(double(falling)), t = level(rest);
  const uint8_t all[6][3] = {{v, t, low}, {q, v, low}, {low, v, t},
                             {low, q, v}, {t, low, v}, {v, low, q}};
  std::memcpy(p, all[sector % 6], 3);
}

TEST(Pillow, TurnsTheHueOfAllColours) {
  // Every third level and both ends, of each channel.
  constexpr int64_t kLevels = 87;
  Array a(DType::u8, {kLevels, kLevels * kLevels, 3});
  for (int64_t i = 0; i < a.count() / 3; ++i) {
    const int64_t level[3] = {i / (kLevels * kLevels), i / kLevels % kLevels, i % kLevels};
    for (int64_t c = 0; c < 3; ++c)
      a.u8()[i * 3 + c] = uint8_t(std::min<int64_t>(255, (level[c] * 3)));
  }
  for (double turn : {0.0, 0.1, -0.37, 0.5}) {
    const Array want = each_pixel(a, [&](uint8_t* p) { turn_hue(p, int(turn * 255)); });
    expect_equal(recoloured(a, [&](Planes& p) { pillow::hue(p, turn); }), want,
                 fmt::format("turn {}", turn));
  }
}

TEST(Pillow, MapsBytes) {
  const Array a = picture(13, 21, 9);
  expect_equal(recoloured(a, pillow::grayscale),
               each_pixel(a, [](uint8_t* p) { p[0] = p[1] = p[2] = uint8_t(luma_of(p)); }),
               "grayscale");
  for (int threshold : {0, 1, 128, 255, 256})
    expect_equal(changed(a, [&](const Image& i) { pillow::solarize(i, threshold); }),
                 each_pixel(a,
                            [&](uint8_t* p) {
                              for (int c = 0; c < 3; ++c)
                                if (p[c] >= threshold) p[c] = uint8_t(255 - p[c]);
                            }),
                 fmt::format("solarize {}", threshold));
  for (int bits : {1, 4, 8})
    expect_equal(changed(a, [&](const Image& i) { pillow::posterize(i, bits); }),
                 each_pixel(a,
                            [&](uint8_t* p) {
                              for (int c = 0; c < 3; ++c)
                                p[c] = uint8_t(p[c] >> (8 - bits) << (8 - bits));
                            }),
                 fmt::format("posterize {}", bits));
}

TEST(Pillow, SpreadsEachChannel) {
  Array a(DType::u8, {1, 3, 3});
  const uint8_t bytes[9] = {10, 7, 0, 20, 7, 255, 13, 7, 100};
  std::memcpy(a.u8(), bytes, 9);
  const Array got = recoloured(a, pillow::autocontrast);
  // The first channel: 25.5 times the distance from 10, cut off. The others stay.
  const std::vector<int> want{0, 7, 0, 255, 7, 255, 76, 7, 100};
  EXPECT_EQ(std::vector<int>(got.u8(), got.u8() + 9), want);
}

// ---- random boxes

struct Middle {  // the middle of every range
  float uniform(double low, double high) const { return float((low + high) / 2); }
  int64_t below(int64_t n) const { return n / 2; }
};

TEST(Pillow, BoxesThatNeverFitAreCutFromTheMiddle) {
  // A part of 95 % with a ratio near 1 fits into neither image.
  const pillow::CropLimits limits{0.9, 1.0, 0.75, 4.0 / 3};
  EXPECT_EQ(pillow::random_box(9, 64, limits, Middle{}), (pillow::Box{0, 26, 9, 12}));
  EXPECT_EQ(pillow::random_box(65, 9, limits, Middle{}), (pillow::Box{26, 0, 12, 9}));
  EXPECT_EQ(pillow::random_box(20, 20, {0.25, 0.25, 1, 1}, Middle{}), (pillow::Box{5, 5, 10, 10}));
}

}  // namespace
}  // namespace data
