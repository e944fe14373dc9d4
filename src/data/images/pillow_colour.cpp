// SPDX-License-Identifier: Apache-2.0
// Brightness, contrast, saturation and maps of single bytes, as Pillow does them (ssl.md 6.2).
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "data/images/pillow.hpp"

// Products and sums must not be fused, because the library rounds each.

namespace data::pillow {
namespace {

#ifdef __x86_64__

constexpr int64_t kTriple = 16;  // pixels that are split into channels at a time

__m128i load_bytes(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
void store_bytes(uint8_t* to, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), v); }

// Return the order of a shuffle that takes channel `c` of 16 pixels out of part `part` of their 48
// bytes, or that puts the channel there. Other lanes become 0.
__m128i taking(int part, int c) {
  alignas(16) int8_t order[16];
  for (int pixel = 0; pixel < kTriple; ++pixel) {
    const int at = pixel * 3 + c - part * 16;
    order[pixel] = int8_t(at >= 0 && at < 16 ? at : -1);
  }
  return _mm_load_si128(reinterpret_cast<const __m128i*>(order));
}
__m128i putting(int part, int c) {
  alignas(16) int8_t order[16];
  for (int byte = 0; byte < 16; ++byte) {
    const int at = part * 16 + byte - c;
    order[byte] = int8_t(at >= 0 && at % 3 == 0 ? at / 3 : -1);
  }
  return _mm_load_si128(reinterpret_cast<const __m128i*>(order));
}

struct ChannelOrders {
  __m128i take[3][3], put[3][3];  // part, channel
  ChannelOrders() {
    for (int part = 0; part < 3; ++part)
      for (int c = 0; c < 3; ++c) {
        take[part][c] = taking(part, c);
        put[part][c] = putting(part, c);
      }
  }
};
const ChannelOrders& orders() {
  static const ChannelOrders all;
  return all;
}

__m128i joined(__m128i a, __m128i b, __m128i c) { return _mm_or_si128(_mm_or_si128(a, b), c); }

// Split whole groups of kTriple pixels into channels, or join them again. Return the number of
// pixels in these groups.
int64_t take_apart(const uint8_t* from, int64_t pixels, uint8_t* const (&channels)[3]) {
  const auto& take = orders().take;
  int64_t i = 0;
  for (; i + kTriple <= pixels; i += kTriple, from += 3 * kTriple) {
    const __m128i a = load_bytes(from), b = load_bytes(from + 16), d = load_bytes(from + 32);
    for (int c = 0; c < 3; ++c)
      store_bytes(channels[c] + i,
                  joined(_mm_shuffle_epi8(a, take[0][c]), _mm_shuffle_epi8(b, take[1][c]),
                         _mm_shuffle_epi8(d, take[2][c])));
  }
  return i;
}
int64_t put_together(uint8_t* to, int64_t pixels, const uint8_t* const (&channels)[3]) {
  const auto& put = orders().put;
  int64_t i = 0;
  for (; i + kTriple <= pixels; i += kTriple, to += 3 * kTriple) {
    const __m128i r = load_bytes(channels[0] + i), g = load_bytes(channels[1] + i),
                  b = load_bytes(channels[2] + i);
    for (int part = 0; part < 3; ++part)
      store_bytes(to + part * 16,
                  joined(_mm_shuffle_epi8(r, put[part][0]), _mm_shuffle_epi8(g, put[part][1]),
                         _mm_shuffle_epi8(b, put[part][2])));
  }
  return i;
}

#else  // the loops over single pixels do all

int64_t take_apart(const uint8_t*, int64_t, uint8_t* const (&)[3]) { return 0; }
int64_t put_together(uint8_t*, int64_t, const uint8_t* const (&)[3]) { return 0; }

#endif

uint8_t luma(uint32_t r, uint32_t g, uint32_t b) {
  return uint8_t((r * 19595 + g * 38470 + b * 7471 + 32768) >> 16);
}

// Returns base + factor * (byte - base), cut off and clipped.
uint8_t blended(int base, int byte, float factor) {
  const float value = float(base) + factor * float(byte - base);
  return uint8_t(int32_t(std::min(std::max(value, 0.0f), 255.0f)));
}

void blend_with_constant(uint8_t* bytes, int64_t count, int base, float factor) {
  for (int64_t i = 0; i < count; ++i) bytes[i] = blended(base, bytes[i], factor);
}

}  // namespace

Planes::Planes(const Image& image)
    : pixels_(image.pixels()),
      stride_((pixels_ + kUnit - 1) / kUnit * kUnit),
      bytes_(size_t(3 * stride_)) {
  int64_t i = take_apart(image.data, pixels_, {channel(0), channel(1), channel(2)});
  const uint8_t* from = image.data + 3 * i;
  for (; i < pixels_; ++i, from += 3)
    for (int c = 0; c < 3; ++c) channel(c)[i] = from[c];
  for (int c = 0; c < 3; ++c) std::memset(channel(c) + pixels_, 0, size_t(stride_ - pixels_));
}

void Planes::store(const Image& image) const {
  int64_t i = put_together(image.data, pixels_, {channel(0), channel(1), channel(2)});
  uint8_t* to = image.data + 3 * i;
  for (; i < pixels_; ++i, to += 3)
    for (int c = 0; c < 3; ++c) to[c] = channel(c)[i];
}

void brightness(Planes& image, float factor) {
  for (int c = 0; c < 3; ++c) blend_with_constant(image.channel(c), image.pixels(), 0, factor);
}

void contrast(Planes& image, float factor) {
  const uint8_t *r = image.channel(0), *g = image.channel(1), *b = image.channel(2);
  uint64_t sum = 0;
  for (int64_t i = 0; i < image.pixels();) {
    const int64_t end = std::min(i + (int64_t{1} << 16), image.pixels());
    uint32_t part = 0;  // 2^16 bytes fit
    for (; i < end; ++i) part += luma(r[i], g[i], b[i]);
    sum += part;
  }
  const int mean = int(double(sum) / double(image.pixels()) + 0.5);
  for (int c = 0; c < 3; ++c) blend_with_constant(image.channel(c), image.pixels(), mean, factor);
}

void saturation(Planes& image, float factor) {
  uint8_t *r = image.channel(0), *g = image.channel(1), *b = image.channel(2);
  for (int64_t i = 0; i < image.pixels(); ++i) {
    const int grey = luma(r[i], g[i], b[i]);
    r[i] = blended(grey, r[i], factor);
    g[i] = blended(grey, g[i], factor);
    b[i] = blended(grey, b[i], factor);
  }
}

void grayscale(Planes& image) {
  uint8_t *r = image.channel(0), *g = image.channel(1), *b = image.channel(2);
  for (int64_t i = 0; i < image.pixels(); ++i) r[i] = luma(r[i], g[i], b[i]);
  std::memcpy(g, r, size_t(image.pixels()));
  std::memcpy(b, r, size_t(image.pixels()));
}

void autocontrast(Planes& image) {
  for (int c = 0; c < 3; ++c) {
    uint8_t* bytes = image.channel(c);
    const auto [low, high] = std::minmax_element(bytes, bytes + image.pixels());
    if (*low == *high) continue;
    const double scale = 255.0 / double(*high - *low), shift = -double(*low) * scale;
    std::array<uint8_t, 256> table;
    for (int i = 0; i < 256; ++i)
      table[size_t(i)] = uint8_t(std::clamp(int(double(i) * scale + shift), 0, 255));
    for (int64_t i = 0; i < image.pixels(); ++i) bytes[i] = table[bytes[i]];
  }
}

void solarize(const Image& image, int threshold) {
  for (int64_t i = 0; i < image.bytes(); ++i) {
    const uint8_t byte = image.data[i];
    image.data[i] = int(byte) < threshold ? byte : uint8_t(255 - byte);
  }
}

void posterize(const Image& image, int bits) {
  const uint8_t mask = uint8_t(0xff << (8 - bits));
  for (int64_t i = 0; i < image.bytes(); ++i) image.data[i] &= mask;
}

}  // namespace data::pillow
