// SPDX-License-Identifier: Apache-2.0
// Resizing as Pillow does it: weights of 22 bits, two passes, and bytes between them.
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "data/images/pillow.hpp"

// The weights repeat the double operations of the library, and fuse none.

namespace data::pillow {
namespace {

// Two products with 16-bit factors replace one with 32-bit factors, which is slower: a weight is
// high * 2^11 + low. Weights are at most 2^22, so both parts and their sums fit.
constexpr int kWeightBits = 22, kLowBits = 11;

struct Weight {
  int16_t high, low;
};

// The inputs of each output along one axis: pixels [first, first + count) and their weights.
class ResizeTaps {
 public:
  ResizeTaps(int64_t in, int64_t out) : first_(size_t(out)), begin_(size_t(out) + 1, 0) {
    const double scale = double(in) / double(out), reach = std::max(scale, 1.0);
    std::vector<double> exact;
    for (int64_t i = 0; i < out; ++i) {
      const double centre = (double(i) + 0.5) * scale;
      const int64_t first = std::max(int64_t(centre - reach + 0.5), int64_t{0}),
                    end = std::min(int64_t(centre + reach + 0.5), in);
      exact.clear();
      double sum = 0;
      for (int64_t k = first; k < end; ++k) {
        const double distance = std::abs((double(k) - centre + 0.5) * (1.0 / reach));
        exact.push_back(distance < 1 ? 1 - distance : 0);
        sum += exact.back();
      }
      for (double w : exact) {
        const int32_t weight = int32_t(0.5 + w / sum * (1 << kWeightBits));
        weights_.push_back({int16_t(weight >> kLowBits), int16_t(weight & ((1 << kLowBits) - 1))});
      }
      first_[size_t(i)] = first;
      begin_[size_t(i) + 1] = int64_t(weights_.size());
    }
  }

  int64_t outputs() const { return int64_t(first_.size()); }
  int64_t first(int64_t out) const { return first_[size_t(out)]; }
  int64_t count(int64_t out) const { return begin_[size_t(out) + 1] - begin_[size_t(out)]; }
  Weight weight(int64_t out, int64_t k) const { return weights_[size_t(begin_[size_t(out)] + k)]; }

 private:
  std::vector<int64_t> first_, begin_;
  std::vector<Weight> weights_;
};

// Computes one byte of output y: the weighted sum of bytes that are `stride` apart, from `in` on.
void blend_byte(const uint8_t* in, int64_t stride, const ResizeTaps& taps, int64_t y,
                uint8_t* out) {
  int32_t sum = 1 << (kWeightBits - 1);
  for (int64_t k = 0; k < taps.count(y); ++k) {
    const Weight w = taps.weight(y, k);
    sum += ((int32_t(w.high) << kLowBits) + w.low) * in[k * stride];
  }
  *out = uint8_t(std::min(sum >> kWeightBits, 255));
}

#ifdef __x86_64__

// Returns the bytes of sums of weighted pixels, rounded.
__m256i rounded_sums(__m256i high, __m256i low) {
  const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low);
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (kWeightBits - 1))),
                           kWeightBits);
}

// Resamples rows. A step takes four pixels; each half of a vector has two of them, as words r0 r1
// g0 g1 b0 b1.
class ResizeColumns {
 public:
  explicit ResizeColumns(const ResizeTaps& taps) : outputs_(size_t(taps.outputs())) {
    for (int64_t i = 0; i < taps.outputs(); ++i) {
      Output& out = outputs_[size_t(i)];
      out.from = taps.first(i) * 3;
      out.step = int64_t(steps_.size());
      for (int64_t k = 0; k < taps.count(i); k += 4) {
        Step step{};
        for (int64_t j = 0; j < std::min<int64_t>(4, taps.count(i) - k); ++j)
          for (int64_t channel = 0; channel < 3; ++channel) {
            const size_t word = size_t(j / 2 * 8 + channel * 2 + j % 2);
            step.high[word] = taps.weight(i, k + j).high;
            step.low[word] = taps.weight(i, k + j).low;
          }
        steps_.push_back(step);
      }
      out.steps = int64_t(steps_.size()) - out.step;
    }
  }

  int64_t outputs() const { return int64_t(outputs_.size()); }

  // Resamples `rows` rows that are `stride` bytes apart to rows of outputs() pixels without gaps.
  // One byte after the end of `out` is written, and up to 13 after the end of the input are read.
  void resample(const uint8_t* in, int64_t stride, int64_t rows, uint8_t* out) const {
    const int64_t row = outputs() * 3;
    int64_t y = 0;
    for (; y + 2 <= rows; y += 2) pixels<2>(in + y * stride, stride, out + y * row, row);
    if (y < rows) pixels<1>(in + y * stride, stride, out + y * row, row);
  }

 private:
  struct Output {
    int64_t from = 0;  // byte offset of the first pixel
    int64_t step = 0, steps = 0;
  };
  struct alignas(32) Step {
    int16_t high[16], low[16];
  };

  template <int kRows>
  void pixels(const uint8_t* in, int64_t stride, uint8_t* out, int64_t row) const {
    const __m256i spread =
        _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                         -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    // Each store writes 4 bytes, one more than a pixel has. The next pixel, or the next row,
    // overwrites the extra byte. So pixels are written from left to right, row after row.
    alignas(4) uint8_t last[4];
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Output& o = outputs_[i];
      __m256i high[kRows], low[kRows];
      for (int r = 0; r < kRows; ++r) high[r] = low[r] = _mm256_setzero_si256();
      const Step* step = &steps_[size_t(o.step)];
      for (int64_t k = 0; k < o.steps; ++k, ++step) {
        const __m256i h = _mm256_load_si256(reinterpret_cast<const __m256i*>(step->high)),
                      l = _mm256_load_si256(reinterpret_cast<const __m256i*>(step->low));
        for (int r = 0; r < kRows; ++r) {
          const __m128i four =
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + r * stride + o.from + k * 12));
          const __m256i words = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), spread);
          high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(words, h));
          low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(words, l));
        }
      }
      for (int r = 0; r < kRows; ++r) {
        const auto folded = [](__m256i v) {
          return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        };
        const __m128i value = _mm256_castsi256_si128(rounded_sums(
            _mm256_castsi128_si256(folded(high[r])), _mm256_castsi128_si256(folded(low[r]))));
        const __m128i words = _mm_packs_epi32(value, value);
        const int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
        uint8_t* to = out + r * row + int64_t(i) * 3;
        if (r + 1 < kRows && i + 1 == outputs_.size()) {
          std::memcpy(last, &pixel, 4);
          std::memcpy(to, last, 3);  // the row below is already stored
        } else {
          std::memcpy(to, &pixel, 4);
        }
      }
    }
  }

  std::vector<Output> outputs_;
  std::vector<Step> steps_;
};

// Adds weighted rows: 32 bytes of each. The rows begin at `in` and are `stride` bytes apart.
void blend_rows(const uint8_t* in, int64_t stride, const ResizeTaps& taps, int64_t y,
                uint8_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
  const int64_t count = taps.count(y);
  for (int64_t k = 0; k < count; k += 2) {
    const bool pair = k + 1 < count;
    const Weight a = taps.weight(y, k), b = pair ? taps.weight(y, k + 1) : Weight{0, 0};
    const auto both = [](int16_t first, int16_t second) {
      return _mm256_set1_epi32(
          int32_t(uint32_t(uint16_t(first)) | uint32_t(uint16_t(second)) << 16));
    };
    const __m256i h = both(a.high, b.high), l = both(a.low, b.low);
    const __m256i top = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + k * stride)),
                  bottom = _mm256_loadu_si256(
                      reinterpret_cast<const __m256i*>(in + (k + (pair ? 1 : 0)) * stride));
    const __m256i left = _mm256_unpacklo_epi8(top, bottom),
                  right = _mm256_unpackhi_epi8(top, bottom);
    const __m256i words[4] = {_mm256_unpacklo_epi8(left, zero), _mm256_unpackhi_epi8(left, zero),
                              _mm256_unpacklo_epi8(right, zero), _mm256_unpackhi_epi8(right, zero)};
    for (int i = 0; i < 4; ++i) {
      high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(words[i], h));
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(words[i], l));
    }
  }
  const __m256i left =
      _mm256_packs_epi32(rounded_sums(high[0], low[0]), rounded_sums(high[1], low[1]));
  const __m256i right =
      _mm256_packs_epi32(rounded_sums(high[2], low[2]), rounded_sums(high[3], low[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_packus_epi16(left, right));
}

#else  // the same sums of integers, byte by byte

class ResizeColumns {
 public:
  explicit ResizeColumns(ResizeTaps taps) : taps_(std::move(taps)) {}

  void resample(const uint8_t* in, int64_t stride, int64_t rows, uint8_t* out) const {
    for (int64_t y = 0; y < rows; ++y)
      for (int64_t i = 0; i < taps_.outputs(); ++i)
        for (int64_t channel = 0; channel < 3; ++channel)
          blend_byte(in + y * stride + taps_.first(i) * 3 + channel, 3, taps_, i, out++);
  }

 private:
  ResizeTaps taps_;
};

void blend_rows(const uint8_t* in, int64_t stride, const ResizeTaps& taps, int64_t y,
                uint8_t* out) {
  for (int64_t x = 0; x < 32; ++x) blend_byte(in + x, stride, taps, y, out + x);
}

#endif

// Resamples rows of `width` bytes in the vertical direction, to rows without gaps.
void resample_columns(const uint8_t* in, int64_t stride, int64_t width, const ResizeTaps& taps,
                      uint8_t* out) {
  constexpr int64_t kStep = 32;
  for (int64_t y = 0; y < taps.outputs(); ++y, out += width) {
    const uint8_t* from = in + taps.first(y) * stride;
    if (width < kStep) {
      for (int64_t x = 0; x < width; ++x) blend_byte(from + x, stride, taps, y, out + x);
      continue;
    }
    for (int64_t x = 0; x + kStep <= width; x += kStep)
      blend_rows(from + x, stride, taps, y, out + x);
    if (width % kStep)  // computes some bytes twice
      blend_rows(from + width - kStep, stride, taps, y, out + width - kStep);
  }
}

}  // namespace

void resize(const Image& from, const Box& box, const Image& to) {
  CHECK(box.y >= 0 && box.x >= 0 && box.height > 0 && box.width > 0 && to.height > 0 &&
            to.width > 0 && box.y + box.height <= from.height && box.x + box.width <= from.width,
        "a box of {} x {} at {}, {} of an image of {} x {}", box.height, box.width, box.y, box.x,
        from.height, from.width);
  const int64_t stride = from.width * 3;
  const uint8_t* in = from.data + box.y * stride + box.x * 3;
  const bool rows = box.height != to.height, columns = box.width != to.width;
  if (!rows && !columns) {
    for (int64_t y = 0; y < to.height; ++y)
      std::memcpy(to.data + y * to.width * 3, in + y * stride, size_t(to.width * 3));
    return;
  }
  if (!columns)
    return resample_columns(in, stride, to.width * 3, ResizeTaps(box.height, to.height), to.data);
  const ResizeColumns horizontal(ResizeTaps(box.width, to.width));
  // Which pass is first matters, because each one rounds.
  const bool rows_first =
      rows && box.height > to.height && box.height - to.height > 2 * (box.width - to.width);
  Bytes between, result(size_t(to.bytes()) + 1);
  if (rows_first) {
    between.reset(size_t(to.height * box.width * 3));
    resample_columns(in, stride, box.width * 3, ResizeTaps(box.height, to.height), between.data());
    horizontal.resample(between.data(), box.width * 3, to.height, result.data());
    std::memcpy(to.data, result.data(), size_t(to.bytes()));
    return;
  }
  between.reset(size_t(box.height * to.width * 3) + 1);
  horizontal.resample(in, stride, box.height, between.data());
  if (rows)
    resample_columns(between.data(), to.width * 3, to.width * 3, ResizeTaps(box.height, to.height),
                     to.data);
  else
    std::memcpy(to.data, between.data(), size_t(to.bytes()));
}

void mirror(const Image& image) {
#ifdef __x86_64__
  // Five pixels at a time; byte 15 of a vector is not used.
  const __m128i order = _mm_setr_epi8(12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2, -1);
#endif
  Bytes row(size_t(image.width * 3) + 1);
  for (int64_t y = 0; y < image.height; ++y) {
    uint8_t* line = image.data + y * image.width * 3;
    int64_t x = 0;
#ifdef __x86_64__
    for (; x + 5 <= image.width; x += 5) {
      const __m128i five =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + (image.width - x - 5) * 3));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(row.data() + x * 3),
                       _mm_shuffle_epi8(five, order));
    }
#endif
    for (; x < image.width; ++x)
      std::memcpy(row.data() + x * 3, line + (image.width - 1 - x) * 3, 3);
    std::memcpy(line, row.data(), size_t(image.width * 3));
  }
}

}  // namespace data::pillow
