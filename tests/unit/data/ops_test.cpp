// SPDX-License-Identifier: Apache-2.0
// Tests ops that no recorded file covers: fields, numbers, and random ops, which draw only from
// seed, op and position.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "data/images/resize.hpp"
#include "data/ops/pipeline.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using device::DType;
using test::expect_error;

// Every pixel encodes its position: channel 0 = row, 1 = column.
Array numbered(int64_t height, int64_t width) {
  Array a(DType::u8, {height, width, 3});
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      uint8_t* p = a.u8() + (y * width + x) * 3;
      p[0] = uint8_t(y);
      p[1] = uint8_t(x);
      p[2] = 7;
    }
  return a;
}

Spec spec_of(const Sample& sample) {
  Spec spec;
  for (auto& [name, value] : sample) {
    const Array* a = std::get_if<Array>(&value);
    spec[name] = a                                            ? FieldSpec::array(a->type, a->shape)
                 : std::holds_alternative<std::string>(value) ? FieldSpec::characters()
                 : std::holds_alternative<Texts>(value)       ? FieldSpec::list_of_texts()
                                                              : FieldSpec::encoded();
  }
  return spec;
}

Sample run(const std::string& pp, Sample sample, int64_t position = 0, uint64_t seed = 0) {
  Pipeline pipeline(pp, spec_of(sample), {}, seed);
  pipeline.apply(sample, position);
  for (auto& [name, known] : pipeline.spec())
    EXPECT_EQ(mismatch(known, sample.at(name)), "") << pp << " " << name;
  return sample;
}

Sample with_image(Array image) {
  Sample s;
  s["image"] = std::move(image);
  return s;
}
const Array& array(const Sample& s, const char* name) { return std::get<Array>(s.at(name)); }
std::vector<float> floats(const Array& a) { return {a.f32(), a.f32() + a.count()}; }

struct Corner {
  int64_t y, x, height, width;
  bool mirrored;
};
Corner corner_of(const Array& a) {
  Corner c{a.u8()[0], a.u8()[1], a.shape[0], a.shape[1], false};
  const uint8_t* last = a.u8() + a.count() - 3;
  EXPECT_EQ(last[0], c.y + c.height - 1);
  c.mirrored = last[1] < c.x;
  EXPECT_EQ(std::abs(int64_t(last[1]) - c.x), c.width - 1);
  return c;
}

TEST(RandomOps, DependOnSeedOpAndPositionOnly) {
  for (const std::string pp :
       {"random_crop(5)", "inception_crop(area_min=20)", "flip_lr", "randu('u')"}) {
    SCOPED_TRACE(pp);
    auto outcome = [&](int64_t position, uint64_t seed, const std::string& before = "") {
      Sample s = run(before + pp, with_image(numbered(40, 60)), position, seed);
      const Array& a = array(s, s.contains("u") ? "u" : "image");
      return std::string(reinterpret_cast<const char*>(a.bytes.data()), a.bytes.size()) +
             text_of(a.shape);
    };
    std::set<std::string> other_positions, other_seeds, other_places;
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(outcome(i, 3), outcome(i, 3));
      other_positions.insert(outcome(i, 3));
      other_seeds.insert(outcome(0, uint64_t(i)));
    }
    size_t least = pp == "flip_lr" ? 2 : 30;
    EXPECT_GE(other_positions.size(), least);
    EXPECT_GE(other_seeds.size(), least);
    // At another place of the string, the op draws other numbers.
    bool differs = false;
    for (int64_t i = 0; i < 20; ++i)
      differs |= outcome(i, 3, "copy('image', 'b') | drop('b') | ") != outcome(i, 3);
    EXPECT_TRUE(differs);
  }
}

TEST(RandomOps, FlipIsFair) {
  int flipped = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    Corner c = corner_of(array(run("flip_lr", with_image(numbered(3, 5)), i), "image"));
    EXPECT_EQ(c.x, c.mirrored ? 4 : 0);
    flipped += c.mirrored;
  }
  EXPECT_NEAR(flipped, 1000, 4 * std::sqrt(500));
}

TEST(RandomOps, CropsReachEveryPlace) {
  std::set<std::pair<int64_t, int64_t>> places;
  for (int64_t i = 0; i < 600; ++i) {
    Corner c = corner_of(array(run("random_crop([4, 6])", with_image(numbered(8, 8)), i), "image"));
    EXPECT_EQ(c.height, 4);
    EXPECT_EQ(c.width, 6);
    places.emplace(c.y, c.x);
  }
  EXPECT_EQ(places.size(), 5u * 3u);
  expect_error(Exit::config, {"random_crop", "[9,9,3]", "[8,8,3]"},
               [] { run("random_crop(9)", with_image(numbered(8, 8))); });
  // The size of an image is often known only when it is read.
  Pipeline late("random_crop(9)", {{"image", FieldSpec::array(DType::u8, {-1, -1, 3})}}, {});
  Sample small = with_image(numbered(8, 8));
  expect_error(Exit::data, {"random_crop", "[8,8,3]", "[9,9]"}, [&] { late.apply(small, 0); });
}

TEST(RandomOps, InceptionCropsHaveTheStatedAreasAndRatios) {
  double smallest = 1, largest = 0;
  for (int64_t i = 0; i < 500; ++i) {
    Corner c = corner_of(
        array(run("inception_crop(None, 10, 60)", with_image(numbered(120, 200)), i), "image"));
    double area = double(c.height * c.width) / (120 * 200),
           ratio = double(c.width) / double(c.height);
    EXPECT_TRUE(area >= 0.0999 && area <= 0.6001) << area;
    EXPECT_TRUE(ratio > 0.72 && ratio < 1.37) << ratio;
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
  }
  EXPECT_LT(smallest, 0.13);
  EXPECT_GT(largest, 0.55);
  // No box of this area has that ratio here, so the op returns the whole image, as published.
  EXPECT_EQ(
      array(run("inception_crop(None, 90, 100)", with_image(numbered(10, 200))), "image").shape,
      (std::vector<int64_t>{10, 200, 3}));
  EXPECT_EQ(array(run("inception_crop(16)", with_image(numbered(40, 30))), "image").shape,
            (std::vector<int64_t>{16, 16, 3}));
  expect_error(Exit::config, {"area_min", "percent"},
               [] { run("inception_crop(area_min=0)", with_image(numbered(4, 4))); });
  expect_error(Exit::config, {"bilinaer", "nearest is 'bilinear'"},
               [] { run("inception_crop(8, method='bilinaer')", with_image(numbered(4, 4))); });
}

// A crop that is smaller than the image never ends at its last row or column, as in the published
// sampler (mutant D12). All other places occur.
TEST(RandomOps, InceptionCropsLeaveOutTheLastPlace) {
  constexpr int64_t kSide = 8;
  std::map<int64_t, std::set<int64_t>> y_of, x_of;  // height -> rows where such a crop began
  for (int64_t i = 0; i < 3000; ++i) {
    Corner c = corner_of(array(
        run("inception_crop(None, 15, 100)", with_image(numbered(kSide, kSide)), i), "image"));
    y_of[c.height].insert(c.y);
    x_of[c.width].insert(c.x);
  }
  for (auto& [size, places] : {std::pair{"height", &y_of}, {"width", &x_of}})
    for (auto& [length, begins] : *places) {
      SCOPED_TRACE(fmt::format("{} {}", size, length));
      int64_t last = std::max<int64_t>(kSide - length - 1, 0);
      EXPECT_EQ(*begins.begin(), 0);
      EXPECT_EQ(*begins.rbegin(), last);
      EXPECT_EQ(int64_t(begins.size()), last + 1);
    }
  EXPECT_EQ(y_of[kSide - 1], std::set<int64_t>{0});
  EXPECT_EQ(x_of[kSide - 1], std::set<int64_t>{0});
}

TEST(Crop, Central) {
  auto corner = [](const std::string& pp) {
    return corner_of(array(run(pp, with_image(numbered(9, 14))), "image"));
  };
  EXPECT_EQ(corner("central_crop(4)").y, 2);  // floor(5 / 2)
  EXPECT_EQ(corner("central_crop(4)").x, 5);
  EXPECT_EQ(corner("central_crop").width, 9);
  EXPECT_EQ(corner("central_crop").x, 2);
  expect_error(Exit::config, {"central_crop", "[10,10,3]"}, [&] { corner("central_crop(10)"); });
}

TEST(ResizeSide, SpecsAndBombs) {
  Spec known{{"image", FieldSpec::array(DType::u8, {37, 53, 3})}},
      unknown{{"image", FieldSpec::array(DType::u8, {-1, -1, 3})}};
  EXPECT_EQ(text_of(Pipeline("resize_small(16)", known, {}).spec()), "image u8 [16,23,3]");
  EXPECT_EQ(text_of(Pipeline("resize_long(20)", known, {}).spec()), "image u8 [14,20,3]");
  EXPECT_EQ(text_of(Pipeline("resize_small(16)", unknown, {}).spec()), "image u8 [?,?,3]");
  // For an image of one pixel, keeping the aspect ratio would take gigabytes.
  Array line(DType::u8, {1, 100'000, 3});
  expect_error(Exit::data, {"25600000 x 256", "at most 100000000"}, [&] {
    Sample sample = with_image(line);
    Pipeline("resize_small(256)", unknown, {}).apply(sample, 0);
  });
  expect_error(Exit::config, {"u8 [256,25600000,3]"},
               [&] { run("resize_small(256)", with_image(line)); });
  expect_error(Exit::data, {"20 x 0"},
               [&] { run("resize_long(20) | drop('image')", with_image(line)); });
}

// Constants stay constant, and the weights at equal phase follow the formula of the kernel.
TEST(ResizeKernels, AllMethods) {
  Array flat(DType::f32, {9, 13, 2});
  std::fill_n(flat.f32(), flat.count(), 42.5f);
  for (const std::string& name : resize_method_names())
    for (bool antialias : {false, true})
      for (auto [h, w] : {std::pair<int64_t, int64_t>{4, 5}, {20, 30}, {9, 6}, {1, 1}}) {
        Array out = resize(flat, h, w, resize_method_named(name), antialias);
        for (int64_t i = 0; i < out.count(); ++i)
          ASSERT_NEAR(out.f32()[i], 42.5, 1e-3) << name << h << w;
      }
  // In a doubling, output 9 of 40 lies at input 4.25, with taps at distances |k - 4.25|.
  auto value = [](const std::string& name, auto kernel) {
    Array in(DType::f32, {1, 20, 1});
    double sum = 0, expected = 0;
    for (int64_t k = 0; k < 20; ++k) {
      in.f32()[k] = float(k * k % 7);
      double weight = kernel(std::abs(double(k) - 4.25));
      sum += weight;
      expected += weight * double(in.f32()[k]);
    }
    EXPECT_NEAR(resize(in, 1, 40, resize_method_named(name), false).f32()[9], expected / sum, 2e-3)
        << name;
  };
  auto lanczos = [](double r) {
    return [r](double x) {
      if (x == 0) return 1.0;
      return x > r ? 0.0 : r * std::sin(M_PI * x) * std::sin(M_PI * x / r) / (M_PI * M_PI * x * x);
    };
  };
  value("lanczos3", lanczos(3));
  value("lanczos5", lanczos(5));
  value("gaussian", [](double x) { return x >= 1.5 ? 0.0 : std::exp(-2 * x * x); });
  value("bilinear", [](double x) { return std::max(0.0, 1 - x); });
  value("bicubic", [](double x) {
    return x >= 2 ? 0.0 : x >= 1 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : (1.5 * x - 2.5) * x * x + 1;
  });
  value("mitchellcubic", [](double x) {
    return x >= 2   ? 0.0
           : x >= 1 ? (((-7 * x / 18) + 2) * x - 10.0 / 3) * x + 16.0 / 9
                    : ((7 * x / 6) - 2) * x * x + 8.0 / 9;
  });
}

TEST(Fields, KeepDropCopy) {
  Sample s = run("copy('image', 'b') | drop('image') | copy('b', 'c') | keep('c')",
                 with_image(numbered(2, 2)));
  ASSERT_EQ(s.size(), 1u);
  EXPECT_EQ(array(s, "c").shape, (std::vector<int64_t>{2, 2, 3}));
  expect_error(Exit::config, {"drop", "no field 'imge'"},
               [] { run("drop('imge')", with_image(numbered(2, 2))); });
  expect_error(Exit::config, {"copy", "no field 'text'"},
               [] { run("copy('text', 'b')", with_image(numbered(2, 2))); });
}

TEST(Texts, ChoiceIsUniformAndKeepsTheRest) {
  Sample captions{{"captions", Texts{"a", "b", "c", "d", "e"}}};
  std::map<std::string, int> seen;
  for (int64_t i = 0; i < 2000; ++i) {
    Sample s =
        run("coco_captions('captions') | choice(inkey='captions', outkey='text')", captions, i);
    ++seen[std::get<std::string>(s.at("text"))];
    EXPECT_EQ(std::get<Texts>(s.at("captions")).size(), 5u);
  }
  ASSERT_EQ(seen.size(), 5u);
  for (auto& [text, count] : seen) EXPECT_NEAR(count, 400, 4 * std::sqrt(320)) << text;
  EXPECT_EQ(std::get<std::string>(run("choice(key='t')", {{"t", Texts{}}}).at("t")), "");
  EXPECT_EQ(std::get<std::string>(run("choice(key='t')", {{"t", std::string("one")}}).at("t")),
            "one");
  Sample image = run("choice('single', 'image', 'row')", with_image(numbered(4, 5)), 2);
  EXPECT_EQ(array(image, "row").shape, (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(array(image, "row").u8()[0], array(image, "row").u8()[12]);
  expect_error(Exit::config, {"choice", "inkey"}, [] { run("choice()", {{"t", Texts{}}}); });
  expect_error(Exit::config, {"single"}, [] { run("choice('two', key='t')", {{"t", Texts{}}}); });
  expect_error(Exit::config, {"nothing to choose"}, [] {
    run("choice(key='t')", {{"t", Bytes(3)}});
  });
}

TEST(Texts, Lower) {
  EXPECT_EQ(
      std::get<std::string>(run("lower", {{"text", std::string("A Straße IN Ümlaut")}}).at("text")),
      "a straße in Ümlaut");
  EXPECT_EQ(std::get<Texts>(run("lower(key='c')", {{"c", Texts{"A", "b"}}}).at("c")),
            (Texts{"a", "b"}));
}

TEST(Numbers, Onehot) {
  auto labels = [](std::vector<int64_t> shape, std::vector<int32_t> values) {
    Array a(DType::i32, std::move(shape));
    std::copy(values.begin(), values.end(), a.i32());
    return Sample{{"labels", a}};
  };
  using F = std::vector<float>;
  EXPECT_EQ(floats(array(run("onehot(4)", labels({}, {2})), "labels")), (F{0, 0, 1, 0}));
  EXPECT_EQ(floats(array(run("onehot(4, on=0.5, off=-1)", labels({3}, {0, 2, 2})), "labels")),
            (F{.5, -1, .5, -1}));
  Sample s = run("onehot(3, multi=False, key_result='v')", labels({2}, {2, 5}));
  EXPECT_EQ(array(s, "v").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(floats(array(s, "v")), (F{0, 0, 1, 0, 0, 0}));
  for (int32_t outside : {-1, 3})
    EXPECT_EQ(floats(array(run("onehot(3)", labels({}, {outside})), "labels")), (F{0, 0, 0}));
  expect_error(Exit::data, {"label -1", "[0, 4)"}, [&] { run("onehot(4)", labels({1}, {-1})); });
  expect_error(Exit::data, {"label 4", "[0, 4)"}, [&] { run("onehot(4)", labels({1}, {4})); });
}

TEST(Numbers, Randu) {
  double sum = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    Sample s = run("randu('u')", {}, i);
    float u = *array(s, "u").f32();
    EXPECT_TRUE(u >= 0 && u < 1);
    sum += double(u);
  }
  EXPECT_NEAR(sum / 1000, 0.5, 0.04);
}

TEST(Shape, PadAndReshape) {
  Array a(DType::i32, {2, 2});
  for (int i = 0; i < 4; ++i) a.i32()[i] = i + 1;
  auto padded = [&](const std::string& where) {
    Sample s = run("pad_to_shape([3, 5], 9, where='" + where + "', key='n')", {{"n", a}});
    const Array& out = array(s, "n");
    return std::vector<int32_t>(out.i32(), out.i32() + out.count());
  };
  using I = std::vector<int32_t>;
  EXPECT_EQ(padded("after"), (I{1, 2, 9, 9, 9, 3, 4, 9, 9, 9, 9, 9, 9, 9, 9}));
  EXPECT_EQ(padded("before"), (I{9, 9, 9, 9, 9, 9, 9, 9, 1, 2, 9, 9, 9, 3, 4}));
  EXPECT_EQ(padded("both"), (I{9, 1, 2, 9, 9, 9, 3, 4, 9, 9, 9, 9, 9, 9, 9}));
  expect_error(Exit::config, {"pad_to_shape", "[2,2]", "[1,5]"}, [&] {
    run("pad_to_shape([1, 5], key='n')", {{"n", a}});
  });
  expect_error(Exit::config, {"reshape", "[3]"}, [&] { run("reshape([3], key='n')", {{"n", a}}); });
  expect_error(Exit::config, {"whole numbers"}, [&] {
    run("reshape([2.5], key='n')", {{"n", a}});
  });
  expect_error(Exit::config, {"pad_value 1e+18"}, [&] {
    run("pad_to_shape([3, 5], 1e18, key='n')", {{"n", a}});
  });
  expect_error(Exit::config, {"elements"}, [&] {
    run("reshape([9e6, 9e6, 9e6], key='n')", {{"n", a}});
  });
}

// A limit is above all values. Padding of class n needs a model of n + 1 classes, and padding
// below 0 is no class.
TEST(Shape, PaddingMayRaiseTheLimitOfAField) {
  for (const auto& [value, limit] : {std::pair{-1, 0}, {0, 5}, {4, 5}, {5, 6}, {9, 10}}) {
    const Spec classes{{"n", FieldSpec::array(DType::i32, {2}, 5)}};
    const std::string pad = fmt::format("pad_to_shape([4], {}, key='n')", value);
    EXPECT_EQ(Pipeline(pad, classes, {}).spec().at("n").limit, limit) << pad;
    EXPECT_EQ(Pipeline(pad + " | reshape([2, 2], key='n') | copy('n', 'm')", classes, {})
                  .spec()
                  .at("m")
                  .limit,
              limit);
  }
  const Spec open{{"n", FieldSpec::array(DType::i32, {2})}};
  EXPECT_EQ(Pipeline("pad_to_shape([4], 7, key='n')", open, {}).spec().at("n").limit, 0);
}

}  // namespace
}  // namespace data
