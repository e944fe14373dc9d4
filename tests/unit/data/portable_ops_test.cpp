// SPDX-License-Identifier: Apache-2.0
// Ops on images have the same bits on every CPU at determinism.level "anywhere". Bytes hide most
// roundings: colour jitter with a fused multiply-add changes two of a million bytes. So the ops run
// on so many values, and on such values, that a moved rounding shows. Where a function has few
// inputs, it runs on all of them. After a change of bits, record them again:
//   TRAINER_RECORD=1 build/tests/test_data --gtest_filter='PortableOps.*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/elementary.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "data/images/inception_box.hpp"
#include "data/images/random_box.hpp"
#include "data/images/resize.hpp"
#include "data/ops/pipeline.hpp"
#include "data/ops/views.hpp"
#include "tests/unit/recorded.hpp"

namespace data {
namespace {

using device::DType;
using pillow::Image;
using pillow::Planes;

class Digest {
 public:
  void add(const void* data, size_t bytes) { value_ = base::xxh3(data, bytes, value_); }
  void add(const Array& a) {
    add(a.shape.data(), a.shape.size() * sizeof(int64_t));
    add(a.bytes.data(), size_t(a.count() * device::size_of(a.type)));
  }
  void add(const Planes& planes) {
    for (int c = 0; c < 3; ++c) add(planes.channel(c), size_t(planes.pixels()));
  }
  void add(const pillow::Box& box) { add(&box, sizeof box); }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0;
};

using Digests = std::map<std::string, std::string>;

// Bits that only integer operations make.
uint32_t made_up_bits(uint64_t i) {
  i = (i + 1) * 0x9E3779B97F4A7C15u;
  i = (i ^ (i >> 29)) * 0xBF58476D1CE4E5B9u;
  return uint32_t(i >> 32);
}

Array made_up_bytes(int64_t height, int64_t width, int64_t channels = 3) {
  Array a(DType::u8, {height, width, channels});
  uint8_t* to = a.u8();
  for (int64_t i = 0; i < a.count(); ++i) to[i] = uint8_t(made_up_bits(uint64_t(i)) >> 8);
  return a;
}

// Floats of all 24 bits, between 0 and 256.
Array made_up_floats(int64_t height, int64_t width) {
  Array a(DType::f32, {height, width, 3});
  for (int64_t i = 0; i < a.count(); ++i)
    a.f32()[i] = float(made_up_bits(uint64_t(i)) >> 8) / 65536;
  return a;
}

Image rgb_of(const Array& a) { return {a.view().u8(), a.shape[0], a.shape[1]}; }

// Fractions. Many of their products are nearly whole numbers, and bytes are cut off there.
std::vector<float> factors() {
  std::vector<float> all;
  for (int parts : {3, 7, 10, 11})
    for (int i = 0; i * 10 <= parts * 26; ++i) all.push_back(float(i) / float(parts));
  return all;
}

// ---- colours

// Calls f(planes, number) for 256 images of 256 x 256 pixels, which have all colours.
template <class F>
void for_all_colours(const F& f) {
  constexpr int64_t kSide = 256;
  Array start(DType::u8, {kSide, kSide, 3});
  Planes planes(rgb_of(start));
  for (int red = 0; red < kSide; ++red) {
    std::memset(planes.channel(0), red, size_t(planes.pixels()));
    for (int64_t green = 0; green < kSide; ++green) {
      std::memset(planes.channel(1) + green * kSide, int(green), size_t(kSide));
      for (int64_t blue = 0; blue < kSide; ++blue)
        planes.channel(2)[green * kSide + blue] = uint8_t(blue);
    }
    f(planes);
  }
}

void add_hues(Digests& out) {
  Digest to, from, turned;
  for_all_colours([&](Planes& planes) {
    pillow::to_hsv(planes);
    to.add(planes);
  });
  for_all_colours([&](Planes& planes) {
    pillow::from_hsv(planes);
    from.add(planes);
  });
  const Array bytes = made_up_bytes(16, 16);
  for (int i = -75; i <= 75; ++i) {
    Planes planes(rgb_of(bytes));
    pillow::hue(planes, double(float(i) / 150));
    turned.add(planes);
  }
  out["to_hsv"] = to.text();
  out["from_hsv"] = from.text();
  out["hue"] = turned.text();
}

// Grey pixels of all bytes, and of `level`, which moves their mean.
Array all_levels(int level) {
  Array a(DType::u8, {4, 256, 3});
  for (int64_t i = 0; i < a.count(); ++i) a.u8()[i] = i < 256 * 3 ? uint8_t(i / 3) : uint8_t(level);
  return a;
}

// Half of the pixels have one level, half have the next one, so the mean is between two bytes.
Array between_levels(int level, int64_t pairs) {
  Array a(DType::u8, {2, pairs, 3});
  for (int64_t i = 0; i < a.count(); ++i) a.u8()[i] = uint8_t(level + (i < pairs * 3));
  return a;
}

void add_blends(Digests& out) {
  Digest brightness, contrast, mean, saturation, sharpness;
  const Array bytes = made_up_bytes(512, 700), small = made_up_bytes(120, 160);
  std::vector<Array> levels;
  for (int level = 0; level < 256; level += 5) levels.push_back(all_levels(level));
  for (float factor : factors()) {
    Planes one(rgb_of(levels[0]));
    pillow::brightness(one, factor);
    brightness.add(one);
    for (const Array& a : levels) {
      Planes planes(rgb_of(a));
      pillow::contrast(planes, factor);
      contrast.add(planes);
    }
    Planes planes(rgb_of(bytes));
    pillow::saturation(planes, factor);
    saturation.add(planes);
    Array sharp = small;
    pillow::sharpness(rgb_of(sharp), factor);
    sharpness.add(sharp);
  }
  for (int level = 0; level < 255; ++level)
    for (int64_t pairs : {3, 7, 25, 49, 98, 103, 107, 161}) {
      Planes planes(rgb_of(between_levels(level, pairs)));
      pillow::contrast(planes, 0);
      mean.add(planes);
    }
  out["brightness"] = brightness.text();
  out["contrast"] = contrast.text();
  out["contrast_mean"] = mean.text();
  out["saturation"] = saturation.text();
  out["sharpness"] = sharpness.text();
}

// All bounds that a channel can have, with all bytes between them.
void add_autocontrast(Digests& out) {
  Digest digest;
  Array start(DType::u8, {1, 256, 3});
  Planes planes(rgb_of(start));
  int channel = 0;
  for (int low = 0; low < 256; ++low)
    for (int high = low; high < 256; ++high) {
      for (int i = 0; i < 256; ++i) planes.channel(channel)[i] = uint8_t(std::min(low + i, high));
      channel = (channel + 1) % 3;
      if (channel) continue;
      pillow::autocontrast(planes);
      digest.add(planes);
    }
  out["autocontrast"] = digest.text();
}

// A rounding changes the weights of few radii, and those by 2^-24. Bytes hide it, so the weights of
// many radii have a digest of their own.
void add_blurs(Digests& out) {
  Digest weights, digest;
  for (int i = 1; i <= 5000; ++i) {
    const pillow::BoxFilter box = pillow::box_filter(float(i) / 997);
    for (int64_t number : {box.reach, int64_t{box.whole}, int64_t{box.part}})
      weights.add(&number, sizeof number);
  }
  out["box_filter"] = weights.text();
  const Array bytes = made_up_bytes(180, 160);
  for (int i = 1; i <= 210; ++i) {
    Array blurred = bytes;
    pillow::gaussian_blur(rgb_of(blurred), float(i) / 97);
    digest.add(blurred);
  }
  out["gaussian_blur"] = digest.text();
}

// Returns a digest of what the op makes of the image at `positions` positions, which draw their own
// factors and places.
std::string digest_of_op(const std::string& op, const Array& image, int64_t positions = 1) {
  Pipeline pipeline(op, {{"image", FieldSpec::array(image.type, image.shape)}}, {}, 48);
  Digest digest;
  for (int64_t i = 0; i < positions; ++i) {
    Sample sample{{"image", image}};
    pipeline.apply(sample, i);
    for (const auto& [name, value] : sample) digest.add(std::get<Array>(value));
  }
  return digest.text();
}

void add_drawn_colours(Digests& out) {
  const Array bytes = made_up_bytes(48, 64);
  out["op_color_jitter"] = digest_of_op("color_jitter(0.4, 0.3, 0.7, 0.1)", bytes, 1000);
  out["op_color_distortion"] = digest_of_op("color_distortion(0.7)", bytes, 500);
  out["op_gaussian_blur"] = digest_of_op("gaussian_blur(1, [0.1, 1.9])", bytes, 300);
  out["op_grayscale"] = digest_of_op("grayscale(1)", bytes);
  out["op_solarize"] = digest_of_op("solarize(1)", bytes, 50);
  out["op_photometric"] = digest_of_op("photometric(1)", bytes, 1000);
}

// ---- sizes and places

void add_resizes(Digests& out) {
  const Array bytes = made_up_bytes(83, 121), four = made_up_bytes(57, 64, 4),
              floats = made_up_floats(61, 75);
  for (const std::string& name : resize_method_names())
    for (bool antialias : {false, true}) {
      const auto digest_of = [&](const Array& image) {
        Digest digest;
        for (auto [height, width] :
             std::vector<std::pair<int64_t, int64_t>>{{150, 61}, {41, 200}, {166, 363}, {31, 29}})
          digest.add(resize(image, height, width, resize_method_named(name), antialias));
        return digest.text();
      };
      const std::string how = "resize_" + name + (antialias ? "_antialias" : "");
      out[how + "_bytes"] = digest_of(bytes);
      out[how + "_four_channels"] = digest_of(four);
      out[how + "_floats"] = digest_of(floats);
    }
  // The fast loops. Many of their sums are nearly whole numbers, so a moved rounding shows.
  Digest large;
  const Array many = made_up_bytes(401, 367);
  for (auto [height, width] :
       std::vector<std::pair<int64_t, int64_t>>{{1203, 1101}, {2005, 500}, {317, 1468}})
    large.add(resize_bilinear(many, height, width));
  out["resize_bilinear_large"] = large.text();

  // Small even sides that become odd ones: many positions are whole numbers.
  Digest small;
  const Array line = made_up_bytes(1, 62);
  for (int64_t from = 2; from <= 62; from += 2)
    for (int64_t to = 1; to < 100; to += 2)
      for (ResizeMethod method : {ResizeMethod::nearest, ResizeMethod::area})
        small.add(resize(crop(line, 0, 0, 1, from), 1, to, method, false));
  out["resize_small_sides"] = small.text();

  Digest exact;
  for (auto [height, width] :
       std::vector<std::pair<int64_t, int64_t>>{{1203, 500}, {97, 1101}, {401, 211}, {133, 367}}) {
    Array to(DType::u8, {height, width, 3});
    pillow::resize(rgb_of(many), {0, 0, 401, 367}, rgb_of(to));
    exact.add(to);
  }
  out["pillow_resize"] = exact.text();
}

// The sizes that the ops compute. Many fall between two whole numbers before they are rounded.
void add_sizes(Digests& out) {
  for (const std::string op : {"resize_small", "resize_long", "resize_shorter"}) {
    Digest digest;
    for (int64_t size = 5; size < 150; size += 12)
      for (int64_t i = 0; i < 50; ++i) {
        const std::vector<int64_t> shape{
            2 + i, 2 + i + int64_t(made_up_bits(uint64_t(size * 50 + i)) % 200), 3};
        const Pipeline pipeline(fmt::format("{}({})", op, size),
                                {{"image", FieldSpec::array(DType::u8, shape)}}, {});
        digest.add(pipeline.spec().at("image").shape.data(), 2 * sizeof(int64_t));
      }
    out["size_of_" + op] = digest.text();
  }
}

// Boxes in images so large that the last bit of a ratio moves a border.
void add_boxes(Digests& out) {
  constexpr int64_t kDraws = 30'000, kHeight = 300'011, kWidth = 400'009;
  const base::Stream stream(48, "boxes");
  Digest random, inception;
  for (int64_t i = 0; i < kDraws; ++i) {
    Draws draws(stream.sub(uint64_t(i)));
    random.add(pillow::random_box(kHeight, kWidth, {}, CropDraws{draws}));
    inception.add(inception_box(kHeight, kWidth, 0.05f, 1.0f, draws));
  }
  out["random_box"] = random.text();
  out["inception_box"] = inception.text();
}

void add_places(Digests& out) {
  const Array bytes = made_up_bytes(90, 131);
  out["op_rotate"] = digest_of_op("rotate(359)", bytes, 400);
  out["op_rotate_7"] = digest_of_op("rotate(7)", made_up_bytes(400, 300), 10);
  out["op_random_resized_crop"] = digest_of_op("random_resized_crop(32)", bytes, 100);
  out["op_multi_crop"] = digest_of_op("multi_crop([2, 3], [48, 24])", bytes, 50);
  out["op_inception_crop"] = digest_of_op("inception_crop(32, 20)", bytes, 100);
  out["op_resize_shorter"] = digest_of_op("resize_shorter(41)", bytes);
  out["op_resize_small"] = digest_of_op("resize_small(41)", bytes);
  out["op_resize_long"] = digest_of_op("resize_long(41)", bytes);
  out["op_center_crop"] = digest_of_op("center_crop(64)", bytes);
}

// ---- values

void add_values(Digests& out) {
  const Array bytes = made_up_bytes(64, 48), floats = made_up_floats(64, 48);
  const std::vector<std::pair<std::string, std::string>> both{
      {"value_range", "value_range(-1, 1)"},
      {"value_range_clipped", "value_range(0.1, 0.9, 3, 201, True)"},
      {"value_range_of_channels",
       "value_range(-1, 1, [123.675, 116.28, 103.53], [182.07, 173.4, 160.905])"},
      {"vgg_value_range", "vgg_value_range"},
      {"clip_value_range", "clip_value_range"}};
  for (const auto& [name, op] : both) {
    out["op_" + name + "_bytes"] = digest_of_op(op, bytes);
    out["op_" + name + "_floats"] = digest_of_op(op, floats);
  }
  out["op_normalize"] = digest_of_op("normalize", bytes);
}

Digests digests() {
  Digests out;
  add_hues(out);
  add_blends(out);
  add_autocontrast(out);
  add_blurs(out);
  add_drawn_colours(out);
  add_resizes(out);
  add_sizes(out);
  add_boxes(out);
  add_places(out);
  add_values(out);
  return out;
}

// Chooses the functions of level "anywhere" or those of the C library, until it is destroyed.
class ChosenFunctions {
 public:
  explicit ChosenFunctions(bool own) { base::math::use_own(own); }
  ~ChosenFunctions() { base::math::chosen = before_; }

 private:
  const base::math::Functions* before_ = base::math::chosen.load();
};

TEST(PortableOps, HaveTheRecordedBits) {
  const ChosenFunctions own(true);
  const std::string path = tests::source_file("tests/recorded/ops.txt");
  const Digests found = digests();
  if (const char* record = std::getenv("TRAINER_RECORD"); record && *record) {
    std::ofstream file(path);
    for (const auto& [name, digest] : found) file << name << " " << digest << "\n";
  }
  Digests recorded;
  std::ifstream file(path);
  for (std::string name, digest; file >> name >> digest;) recorded[name] = digest;
  EXPECT_EQ(recorded.size(), found.size());
  for (const auto& [name, digest] : found) EXPECT_EQ(digest, recorded[name]) << name;
}

}  // namespace
}  // namespace data
