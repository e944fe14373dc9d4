// SPDX-License-Identifier: Apache-2.0
#include "data/sources/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/elementary.hpp"
#include "base/random.hpp"

namespace data {
namespace {

// Returns a table of normal numbers, to be indexed by 16 random bits: the quantiles (k + 1/2) /
// 65536 of N(0, 1/2), clipped to [-1, 1]. The table reaches four deviations and is clipped at two,
// so nothing is lost. An image then costs microseconds instead of milliseconds.
std::vector<float> noise_table() {
  constexpr int kCount = 1 << 16;
  constexpr double kDeviation = 0.5;
  std::vector<float> table(kCount, 0.0f);
  double x = 0;  // quantile by Newton's method, from the median outwards
  for (int k = kCount / 2; k < kCount; ++k) {
    double p = (k + 0.5) / kCount;
    for (int i = 0; i < 4; ++i) {
      double below = 0.5 * base::math::erfc(-x * M_SQRT1_2),
             density = base::math::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
      x -= (below - p) / density;
    }
    float value = float(std::min(x * kDeviation, 1.0));
    table[size_t(k)] = value;
    table[size_t(kCount - 1 - k)] = -value;
  }
  return table;
}

constexpr int64_t kGrid = 4;  // fields of one colour along each side of a class's pattern

// Returns the colours of the fields of all classes, [classes, kGrid, kGrid, 3], each -1 or 1.
std::vector<float> class_patterns(const SyntheticOptions& o) {
  const base::Stream draws(uint64_t(o.seed), "synthetic.pattern");
  std::vector<float> out(size_t(o.classes * kGrid * kGrid * 3));
  for (size_t i = 0; i < out.size(); ++i) out[i] = draws.bits(i) & 1 ? 1.0f : -1.0f;
  return out;
}

class Synthetic : public Source {
 public:
  explicit Synthetic(const SyntheticOptions& o)
      : options_(o),
        table_(noise_table()),
        patterns_(class_patterns(o)),
        images_(uint64_t(o.seed), "synthetic.image"),
        labels_(uint64_t(o.seed), "synthetic.labels"),
        captions_(uint64_t(o.seed), "synthetic.caption_of_class") {}

  int64_t size() const override { return options_.examples; }
  std::string key(int64_t index) const override { return "synthetic:" + std::to_string(index); }
  std::string summary() const override { return "made up"; }

  uint64_t fingerprint() const override {
    Fingerprint print;
    print.add(options_.seed).add(options_.examples);
    if (options_.classes > 0) print.add(options_.classes);
    if (options_.pattern != Pattern::noise) print.add(int64_t(options_.pattern));
    return print.value();
  }

  Sample read(int64_t index) const override {
    Sample out;
    out["image"] = image(images_.sub(uint64_t(index)));
    if (options_.pattern == Pattern::separable) {
      show_class(class_of(index), std::get<Array>(out["image"]));
      out["labels"] = labels(captions_.sub(uint64_t(class_of(index))));
    } else {
      out["labels"] = labels(labels_.sub(uint64_t(index)));
    }
    if (options_.classes > 0) out["label"] = label(index);
    return out;
  }

  Value field(int64_t index, const std::string& name) const override {
    return name == "label" && options_.classes > 0 ? Value(label(index))
                                                   : Source::field(index, name);
  }

 private:
  int64_t class_of(int64_t index) const { return index % options_.classes; }
  Array label(int64_t index) const {
    Array a(device::DType::i32, {});
    *a.i32() = int32_t(class_of(index));
    return a;
  }

  // Turns noise into half noise, half the pattern of a class.
  void show_class(int64_t number, Array& image) const {
    const int64_t size = options_.image_size;
    const float* pattern = patterns_.data() + number * kGrid * kGrid * 3;
    float* pixel = image.f32();
    for (int64_t y = 0; y < size; ++y)
      for (int64_t x = 0; x < size; ++x, pixel += 3) {
        const float* colour = pattern + (y * kGrid / size * kGrid + x * kGrid / size) * 3;
        for (int64_t c = 0; c < 3; ++c) pixel[c] = 0.5f * pixel[c] + 0.5f * colour[c];
      }
  }

  Array image(const base::Stream& stream) const {
    Array a(device::DType::f32, {options_.image_size, options_.image_size, 3});
    float* out = a.f32();
    if (options_.pattern == Pattern::constant) {
      std::fill(out, out + a.count(), 0.0f);
      return a;
    }
    for (int64_t i = 0, n = a.count(); i < n; i += 8) {
      base::Philox4 words = stream.block(uint64_t(i / 8));
      for (int64_t j = 0; j < std::min<int64_t>(8, n - i); ++j)
        out[i + j] = table_[words[size_t(j / 2)] >> (16 * (j % 2)) & 0xffff];
    }
    return a;
  }

  // The labels are words, then end token 1, then padding 0. They have about 13 tokens for a
  // sequence of 64 and 8 for 24, like COCO captions.
  Array labels(const base::Stream& stream) const {
    int64_t length = options_.seq_len, low = length >= 64 ? 6 : 4, high = length >= 64 ? 19 : 12;
    low = std::min(low, length - 1);
    high = std::min(high, length);
    auto below = [&](uint64_t draw, int64_t n) {
      return int64_t(uint64_t(stream.bits(draw)) * uint64_t(n) >> 32);
    };
    int64_t words = low + below(0, high - low);
    Array a(device::DType::i32, {length});
    int32_t* out = a.i32();
    std::fill(out, out + length, 0);
    for (int64_t i = 0; i < words; ++i)
      out[i] = int32_t(2 + below(uint64_t(i + 1), options_.vocab_size - 2));
    out[words] = 1;
    return a;
  }

  SyntheticOptions options_;
  std::vector<float> table_, patterns_;
  base::Stream images_, labels_, captions_;
};

}  // namespace

void SyntheticOptions::bind(config::Table& t) {
  t.key("examples", examples, "size of the set").min(1);
  t.key("image_size", image_size, "height and width").unit("pixels").min(1).max(4096);
  t.key("seq_len", seq_len, "length of the labels").min(2).max(65536);
  t.key("vocab_size", vocab_size, "words are drawn from 2 .. vocab_size - 1")
      .min(3)
      .max(double(INT32_MAX));
  t.key("seed", seed, "seed of the examples").min(0);
  t.key("classes", classes,
        "number of classes; field `label` is the example's number modulo classes; 0 = no field "
        "`label`")
      .min(0)
      .max(1 << 20);
  t.choice("pattern", pattern,
           {{"noise", Pattern::noise},
            {"constant", Pattern::constant},
            {"separable", Pattern::separable}},
           "what images show: noise; constant: nothing, all pixels are 0; separable: their class, "
           "which a linear classifier can learn, and their caption is that of the class");
  if (pattern == Pattern::separable && classes == 0)
    t.error("pattern", "\"separable\" shows classes, and there are none: set classes");
}

Spec SyntheticOptions::spec() const {
  Spec spec = {{"image", FieldSpec::array(device::DType::f32, {image_size, image_size, 3})},
               {"labels", FieldSpec::array(device::DType::i32, {seq_len}, vocab_size)}};
  if (classes > 0) spec["label"] = FieldSpec::array(device::DType::i32, {}, classes);
  return spec;
}

std::unique_ptr<Source> SyntheticOptions::open(const OpenContext&) const {
  return std::make_unique<Synthetic>(*this);
}

SourceRow synthetic_row() {
  return {"synthetic", "made-up images, captions and classes, for benchmarks and tests",
          []() -> std::shared_ptr<SourceOptions> { return std::make_shared<SyntheticOptions>(); }};
}

}  // namespace data
