// SPDX-License-Identifier: Apache-2.0
// Records random choices. A changed draw would change every run that is resumed, and no other test
// would show it. order_test records the orders of samples, mixture_test those of mixtures, and
// subset_test parts.
#include <gtest/gtest.h>

#include <numeric>

#include "base/hash.hpp"
#include "data/ops/pipeline.hpp"
#include "data/sources/source.hpp"
#include "data/stream/order.hpp"
#include "support.hpp"

namespace data {
namespace {

using device::DType;

// Every pixel encodes its position.
Array pixels_of_places(int64_t height, int64_t width) {
  Array a(DType::u8, {height, width, 3});
  for (int64_t i = 0; i < height * width; ++i) {
    a.u8()[3 * i] = uint8_t(i / width);
    a.u8()[3 * i + 1] = uint8_t(i % width);
  }
  return a;
}

// Returns the results of `op` at positions 0, 1, ... of seed 3, as text.
std::string outcomes(const std::string& op, const std::string& field, int count,
                     const std::function<std::string(const Value&)>& text, int64_t height = 90,
                     int64_t width = 120) {
  Spec spec{{"image", FieldSpec::array(DType::u8, {height, width, 3})},
            {"texts", FieldSpec::list_of_texts()}};
  Pipeline pipeline("copy('image', 'before') | " + op, spec, {}, 3);
  std::string out;
  for (int64_t position = 0; position < count; ++position) {
    Sample sample{{"image", pixels_of_places(height, width)},
                  {"texts", Texts{"a", "b", "c", "d", "e"}}};
    pipeline.apply(sample, position);
    out += (out.empty() ? "" : " ") + text(sample.at(field));
  }
  return out;
}

// Returns "y,x:height,width" of the remaining part of the image.
std::string box(const Value& value) {
  const Array& a = std::get<Array>(value);
  return fmt::format("{},{}:{},{}", a.u8()[0], a.u8()[1], a.shape[0], a.shape[1]);
}

TEST(Recorded, Crops) {
  EXPECT_EQ(outcomes("inception_crop", "image", 8, box),
            "25,83:24,24 2,3:85,98 14,4:65,72 16,63:34,31 5,22:39,49 24,31:26,26 32,41:53,49 "
            "37,21:32,26");
  EXPECT_EQ(
      outcomes("inception_crop(None, 30, 70)", "image", 8, box),
      "12,53:57,58 5,4:79,91 10,4:72,80 7,44:64,58 3,15:58,72 12,21:58,58 14,30:73,68 16,15:65,53");
  EXPECT_EQ(
      outcomes("inception_crop(None, 80, 100)", "image", 8, box),
      "2,13:84,105 0,7:90,104 0,2:89,99 0,0:90,105 0,4:85,106 0,23:90,96 0,5:87,109 1,14:88,99");
  EXPECT_EQ(outcomes("random_crop([60, 100])", "image", 8, box),
            "13,0:60,100 21,19:60,100 19,13:60,100 8,3:60,100 26,5:60,100 13,1:60,100 9,9:60,100 "
            "3,1:60,100");
}

// Hashes thousands of boxes, on shapes of images where rounding decides and where few boxes fit.
TEST(Recorded, ManyCrops) {
  std::string all;
  for (auto [height, width] : {std::pair{90, 120}, {120, 41}, {33, 100}, {9, 8}, {7, 7}, {200, 3}})
    for (std::string areas : {"5, 100", "40, 60", "70, 100", "96, 100"})
      all += outcomes(fmt::format("inception_crop(None, {})", areas), "image", 200, box, height,
                      width) +
             "\n";
  EXPECT_EQ(fmt::format("{:016x}", base::xxh3(all)), "a8594882505cae36");
}

TEST(Recorded, OtherDraws) {
  auto mirrored = [](const Value& value) {
    return std::string(std::get<Array>(value).u8()[1] ? "1" : "0");
  };
  EXPECT_EQ(outcomes("flip_lr", "image", 16, mirrored), "1 0 0 1 0 1 1 1 0 1 0 1 1 1 0 0");
  EXPECT_EQ(fmt::format("{:016x}", base::xxh3(outcomes("flip_lr", "image", 1000, mirrored))),
            "c2f403596b7bdba0");
  EXPECT_EQ(outcomes("choice(key='texts')", "texts", 16,
                     [](const Value& v) { return std::get<std::string>(v); }),
            "c d d b e c b a d b e a b a d c");
  auto row = [](const Value& value) { return fmt::format("{}", std::get<Array>(value).u8()[0]); };
  EXPECT_EQ(outcomes("choice(key='image')", "image", 8, row), "40 63 56 23 77 38 27 9");
  auto number = [](const Value& value) {
    return fmt::format("{:.6f}", *std::get<Array>(value).f32());
  };
  EXPECT_EQ(outcomes("randu('u')", "u", 4, number), "0.449177 0.703419 0.626930 0.266275");
}

// Checkpoints hold fingerprints, and a run continues only if they are equal.
TEST(Recorded, Fingerprints) {
  EXPECT_EQ(fmt::format("{:016x}", Fingerprint().add("a").add(int64_t{7}).value()),
            "c9558007d08cc7a7");
  EXPECT_NE(Fingerprint().add("ab").add("c").value(), Fingerprint().add("a").add("bc").value());
  std::string many(1 << 17, 'x'), other = many;  // longer than one piece of the hash
  other[0] = 'y';
  EXPECT_NE(Fingerprint().add(many).add("z").value(), Fingerprint().add(other).add("z").value());
  // Many numbers at once are as one after the other, however full the buffer is.
  std::vector<int64_t> numbers(20000);
  std::iota(numbers.begin(), numbers.end(), -7);
  EXPECT_EQ(fmt::format("{:016x}", Fingerprint().add("abc").add(numbers).value()),
            "0c6bdd665d53f599");
  for (size_t first : {0, 3, 65531, 65536, 70000}) {
    Fingerprint one;
    Fingerprint all = one.add(std::string(first, 'x'));
    for (int64_t number : numbers) one.add(number);
    EXPECT_EQ(all.add(numbers).add("a").value(), one.add("a").value()) << first;
  }
}

TEST(Recorded, OrdersOfNamedSetsAndLaterEpochs) {
  auto order = [](Shuffle shuffle, const std::string& name, int64_t first) {
    Order o(shuffle, 9, 1, {2, 3}, name);
    std::string out;
    for (int64_t i = 0; i < 9; ++i) out += std::to_string(o.index(first + i));
    return out;
  };
  EXPECT_EQ(order(Shuffle::exact, "", 9), "873456201");
  EXPECT_EQ(order(Shuffle::exact, "coco", 0), "567382104");
  EXPECT_EQ(order(Shuffle::exact, "coco", 9'000'000'000), "073658124");
  EXPECT_EQ(order(Shuffle::blocks, "", 9), "310267584");
  EXPECT_EQ(order(Shuffle::blocks, "coco", 0), "785642130");
}

}  // namespace
}  // namespace data
