// SPDX-License-Identifier: Apache-2.0
// Tests views of an image: their fields and shapes, their draws, and bad arguments.
#include "data/ops/views.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "data/ops/pipeline.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using device::DType;
using test::expect_error;

// Every pixel encodes its position: channel 0 = row, 1 = column.
Array numbered_image(int64_t height, int64_t width) {
  Array a(DType::u8, {height, width, 3});
  for (int64_t i = 0; i < height * width; ++i) {
    a.u8()[i * 3] = uint8_t(i / width);
    a.u8()[i * 3 + 1] = uint8_t(i % width);
    a.u8()[i * 3 + 2] = uint8_t(i * 7);
  }
  return a;
}

const Spec kDecoded{{"image", FieldSpec::array(DType::u8, {-1, -1, 3})}};

Sample made_by(const std::string& text, int64_t position = 0, uint64_t seed = 0,
               int64_t height = 40, int64_t width = 56) {
  Pipeline pipeline(text, kDecoded, {}, seed);
  Sample sample;
  sample["image"] = numbered_image(height, width);
  pipeline.apply(sample, position);
  for (const auto& [name, known] : pipeline.spec())
    EXPECT_EQ(mismatch(known, sample.at(name)), "") << text << " " << name;
  return sample;
}

const Array& array_in(const Sample& sample, const char* field) {
  return std::get<Array>(sample.at(field));
}
std::string view_bytes(const Array& a, int64_t view = 0, int64_t views = 1) {
  const size_t size = a.bytes.size() / size_t(views);
  return {reinterpret_cast<const char*>(a.bytes.data()) + size_t(view) * size, size};
}

TEST(Views, SpecsShowTheGroups) {
  const auto spec_after = [](const std::string& text) {
    return text_of(Pipeline(text, kDecoded, {}).spec());
  };
  EXPECT_EQ(spec_after("copies(2)"), "image u8 [2,?,?,3]");
  EXPECT_EQ(spec_after("copies(2) | random_resized_crop(96) | normalize"), "image f32 [2,96,96,3]");
  EXPECT_EQ(spec_after("multi_crop([2, 6], [224, 96], scale=[[0.14, 1], [0.05, 0.14]])"),
            "image u8 [2,224,224,3], image1 u8 [6,96,96,3]");
  EXPECT_EQ(spec_after("multi_crop([1, 1, 4, 1], [32, 32, 16, 32]) | value_range(-1, 1)"),
            "image f32 [2,32,32,3], image1 f32 [4,16,16,3], image2 f32 [1,32,32,3]");
  EXPECT_EQ(spec_after("multi_crop([2, 1], [8, 4], outkey='crop') | flip_lr(key='crop')"),
            "crop u8 [2,8,8,3], crop1 u8 [1,4,4,3], image u8 [?,?,3]");
  EXPECT_EQ(spec_after("multi_crop([2, 1], [8, 4]) | normalize(outkey='x') | keep('x', 'x1')"),
            "x f32 [2,8,8,3], x1 f32 [1,4,4,3]");
  EXPECT_EQ(spec_after("resize_shorter(256) | center_crop(224)"), "image u8 [224,224,3]");
  EXPECT_EQ(spec_after("index"), "image u8 [?,?,3], index i32 []");
}

// The draws of a view depend on the seed, the op, the position and the view only.
TEST(Views, DrawForThemselves) {
  const std::string distort =
      "flip_lr | color_distortion(p=1) | gaussian_blur(p=1) | solarize | photometric";
  const std::string text = "multi_crop([2, 2], [16, 9]) | " + distort;
  const Sample all = made_by(text, 5, 1);
  EXPECT_EQ(view_bytes(array_in(all, "image")), view_bytes(array_in(made_by(text, 5, 1), "image")));
  EXPECT_NE(view_bytes(array_in(all, "image")), view_bytes(array_in(made_by(text, 6, 1), "image")));
  EXPECT_NE(view_bytes(array_in(all, "image")), view_bytes(array_in(made_by(text, 5, 2), "image")));
  EXPECT_NE(view_bytes(array_in(all, "image"), 0, 2), view_bytes(array_in(all, "image"), 1, 2));
  EXPECT_NE(view_bytes(array_in(all, "image1"), 0, 2), view_bytes(array_in(all, "image1"), 1, 2));
  // Fewer views of the other size change nothing.
  const Sample fewer = made_by("multi_crop([2, 1], [16, 9]) | " + distort, 5, 1);
  EXPECT_EQ(view_bytes(array_in(all, "image")), view_bytes(array_in(fewer, "image")));
  EXPECT_EQ(view_bytes(array_in(all, "image1"), 0, 2), view_bytes(array_in(fewer, "image1")));
  // copies() followed by a crop gives the crops of multi_crop.
  EXPECT_EQ(view_bytes(array_in(made_by("copies(3) | random_resized_crop(12)", 3, 9), "image")),
            view_bytes(array_in(made_by("grayscale(p=0) | multi_crop(3, 12)", 3, 9), "image")));
}

TEST(Views, ProbabilitiesOfEachView) {
  // Sizes differ, so the views are in two fields; probabilities count through both.
  std::map<std::pair<int, bool>, int> grey;
  for (int64_t position = 0; position < 200; ++position) {
    const Sample s =
        made_by("multi_crop([2, 1], [6, 5]) | grayscale(p=[0, 1, 0.25])", position, 0, 20, 20);
    for (int view = 0; view < 3; ++view) {
      const std::string pixels =
          view < 2 ? view_bytes(array_in(s, "image"), view, 2) : view_bytes(array_in(s, "image1"));
      bool is_grey = true;
      for (size_t i = 0; i < pixels.size(); i += 3)
        is_grey = is_grey && pixels[i] == pixels[i + 1] && pixels[i] == pixels[i + 2];
      ++grey[{view, is_grey}];
    }
  }
  EXPECT_EQ(grey.at({0, false}), 200);
  EXPECT_EQ(grey.at({1, true}), 200);
  EXPECT_NEAR(grey.at({2, true}), 50, 20);  // 3 deviations
}

const std::string kWholeViews = "multi_crop([2, 2], [32, 16], scale=[1, 1], ratio=[1, 1])";

// Views are numbered through the fields of all sizes. So a view of the second size has the draws of
// the third copy of an image, not those of the first.
TEST(Views, AreNumberedThroughAllSizes) {
  for (const std::string op :
       {"random_resized_crop(8)", "flip_lr", "color_jitter(0.5, 0.5, 0.5, 0.2)", "color_distortion",
        "grayscale", "gaussian_blur", "solarize", "photometric(p=1)"})
    for (int64_t position = 0; position < 6; ++position) {
      SCOPED_TRACE(op);
      const Sample whole = made_by(kWholeViews, position, 1, 32, 32),
                   all = made_by(kWholeViews + " | " + op, position, 1, 32, 32);
      for (const auto& [field, first] : {std::pair{"image", 0}, {"image1", 2}}) {
        const Array& two = array_in(whole, field);
        Array image(DType::u8, {two.shape[1], two.shape[2], 3});
        std::copy_n(two.u8(), image.count(), image.u8());
        Sample one;
        one["image"] = std::move(image);
        Pipeline("copies(4) | " + op, kDecoded, {}, 1).apply(one, position);
        for (int64_t view : {0, 1})
          EXPECT_EQ(view_bytes(array_in(all, field), view, 2),
                    view_bytes(array_in(one, "image"), first + view, 4));
      }
    }
}

TEST(Views, EachProbabilityIsOfOneView) {
  const Sample whole = made_by(kWholeViews, 3, 1, 32, 32);
  for (const std::string op :
       {"flip_lr(", "grayscale(", "gaussian_blur(radius=2, ", "solarize(threshold=9, ",
        "color_jitter(brightness=0.5, ", "color_distortion(p_gray=0, ", "photometric("}) {
    SCOPED_TRACE(op);
    const Sample all = made_by(kWholeViews + " | " + op + "p=[1, 0, 0, 1])", 3, 1, 32, 32);
    for (const auto& [field, view, changes] : {std::tuple{"image", 0, true},
                                               {"image", 1, false},
                                               {"image1", 0, false},
                                               {"image1", 1, true}})
      EXPECT_EQ(
          view_bytes(array_in(all, field), view, 2) != view_bytes(array_in(whole, field), view, 2),
          changes)
          << field << " " << view;
  }
}

TEST(Views, NoChangesGiveTheImage) {
  EXPECT_EQ(view_bytes(
                array_in(made_by("color_jitter(0, 0, 0, 0) | grayscale(p=0) | gaussian_blur(p=0) | "
                                 "solarize(threshold=256, p=1) | flip_lr(p=0)"),
                         "image")),
            view_bytes(numbered_image(40, 56)));
  EXPECT_EQ(view_bytes(array_in(
                made_by("random_resized_crop([40, 56], scale=[1, 1], ratio=[1.4, 1.4])"), "image")),
            view_bytes(numbered_image(40, 56)));
}

TEST(Views, CropsHaveTheirParts) {
  // A crop without resizing shows its place. Its area and ratio lie within the limits.
  double smallest = 1, largest = 0;
  for (int64_t position = 0; position < 300; ++position) {
    const Sample s =
        made_by("random_resized_crop(20, scale=[0.2, 0.5], ratio=[1, 1])", position, 0, 40, 56);
    const Array& a = array_in(s, "image");
    const double rows = double(a.u8()[19 * 60] - a.u8()[0]) * 20 / 19,
                 columns = double(a.u8()[19 * 3 + 1] - a.u8()[1]) * 20 / 19;
    EXPECT_NEAR(rows, columns, 3);
    smallest = std::min(smallest, rows * columns / (40 * 56));
    largest = std::max(largest, rows * columns / (40 * 56));
  }
  EXPECT_NEAR(smallest, 0.2, 0.05);
  EXPECT_NEAR(largest, 0.5, 0.08);
}

TEST(Views, MiddleWithTorchvisionsRounding) {
  // Half of a spare 5 is 2 and half of a spare 7 is 4: ties go to even numbers.
  const Sample s = made_by("center_crop([35, 49])");
  EXPECT_EQ(int(array_in(s, "image").u8()[0]), 2);
  EXPECT_EQ(int(array_in(s, "image").u8()[1]), 4);
  EXPECT_EQ(text_of(array_in(made_by("resize_shorter(17)", 0, 0, 40, 56), "image").shape),
            "[17,23,3]");
  EXPECT_EQ(text_of(array_in(made_by("resize_shorter(17)", 0, 0, 56, 40), "image").shape),
            "[23,17,3]");
  expect_error(Exit::data, {"center_crop", "[40,56,3] is smaller than the crop [41,41]", "resize"},
               [] { made_by("center_crop(41)"); });
}

TEST(Views, NormalizeRoundsEachStep) {
  const Array bytes = numbered_image(3, 200),
              got = array_in(made_by("normalize", 0, 0, 3, 200), "image");
  const float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
  for (int64_t i = 0; i < got.count(); ++i) {
    const volatile float part = float(bytes.u8()[i]) / 255.0f;
    const volatile float centred = part - mean[i % 3];
    ASSERT_EQ(got.f32()[i], centred / deviation[i % 3]) << i;
  }
}

// Bytes of all groups may stay bytes, with equal draws and values.
TEST(Views, ScalingOfAllGroupsMayBeLeftOut) {
  for (const std::string scale : {"normalize", "value_range(-1, 1)"}) {
    const std::string text = "multi_crop([2, 1], [8, 4]) | color_distortion | " + scale;
    Pipeline whole(text, kDecoded, {}, 3), left(text, kDecoded, {}, 3);
    const std::optional<ByteScale> one = left.byte_scale("image"), two = left.byte_scale("image1");
    ASSERT_TRUE(one.has_value());
    EXPECT_TRUE(one == two);
    left.leave_bytes("image");
    left.leave_bytes("image1");  // changes nothing more
    EXPECT_EQ(text_of(left.spec()), "image u8 [2,8,8,3], image1 u8 [1,4,4,3]");
    Sample a, b;
    a["image"] = numbered_image(20, 20);
    b = a;
    whole.apply(a, 1);
    left.apply(b, 1);
    for (const std::string field : {"image", "image1"})
      for (int64_t i = 0; i < array_in(a, field.c_str()).count(); ++i) {
        const volatile float part = (float(array_in(b, field.c_str()).u8()[i]) - one->low) /
                                    one->width,
                             moved = part * one->to_width;
        const volatile float value = one->to_low + moved;
        const volatile float centred = value - one->mean[size_t(i % 3)];
        ASSERT_EQ(array_in(a, field.c_str()).f32()[i], centred / one->deviation[size_t(i % 3)]);
      }
  }
  EXPECT_FALSE(Pipeline("copies(2) | normalize(outkey='x')", kDecoded, {}).byte_scale("image"));
}

// The numbers are those of Pillow 9.4: Image.rotate(degrees) of the pixels.
TEST(Views, RotateAsPillowDoes) {
  // An image of 4 x 6; fifths of a turn take the nearest pixels.
  const std::map<int64_t, std::vector<int>> wide = {
      {5, {0, 9, 30, 48, 48, 69, 0, 9, 27, 45, 63, 0, 0, 6, 24, 42, 60, 0, 0, 21, 21, 39, 60, 0}},
      {4, {0, 12, 30, 48, 66, 0, 0, 9, 27, 45, 63, 0, 0, 6, 24, 42, 60, 0, 0, 3, 21, 39, 57, 0}}};
  for (const auto& [angles, red] : wide) {
    Array image(DType::u8, {4, 6, 3});
    for (int i = 0; i < 72; ++i) image.u8()[i] = uint8_t(i);
    Array out(DType::u8, {4, 6, 3});
    pillow::rotate({image.u8(), 4, 6}, 360.0 / double(angles), {out.u8(), 4, 6});
    for (size_t i = 0; i < red.size(); ++i) EXPECT_EQ(int(out.u8()[i * 3]), red[i]) << angles;
  }
  // Quarter turns of a square move its pixels: source row and column of pixel (y, x).
  std::map<int32_t, int> seen;
  for (int64_t position = 0; position < 400; ++position) {
    const Sample s = made_by("rotate", position, 0, 5, 5);
    const int32_t turn = *array_in(s, "rotation").i32();
    ++seen[turn];
    const Array& a = array_in(s, "image");
    for (int y = 0; y < 5; ++y)
      for (int x = 0; x < 5; ++x) {
        const int row = turn == 0   ? y
                        : turn == 1 ? x
                        : turn == 2 ? 4 - y
                                    : 4 - x,
                  column = turn == 0   ? x
                           : turn == 1 ? 4 - y
                           : turn == 2 ? 4 - x
                                       : y;
        ASSERT_EQ(int(a.u8()[(y * 5 + x) * 3]), row) << turn;
        ASSERT_EQ(int(a.u8()[(y * 5 + x) * 3 + 1]), column) << turn;
      }
  }
  ASSERT_EQ(seen.size(), 4u);
  for (const auto& [turn, times] : seen) EXPECT_NEAR(times, 100, 35) << turn;  // 4 deviations
  EXPECT_EQ(
      text_of(Pipeline("rotate(8, label='turn') | random_resized_crop(6)", kDecoded, {}).spec()),
      "image u8 [6,6,3], turn i32 []");
}

TEST(Views, PatchesLieInTheirCells) {
  std::set<int> rows, columns;
  for (int64_t position = 0; position < 60; ++position) {
    const Sample s = made_by("patches(jitter=4)", position, 0, 31, 33);
    const Array& a = array_in(s, "image");
    ASSERT_EQ(text_of(a.shape), "[9,6,6,3]");
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) {
        const uint8_t* patch = a.u8() + (i * 3 + j) * 6 * 6 * 3;
        const int row = patch[0] - j * 10, column = patch[1] - i * 10;
        rows.insert(row);
        columns.insert(column);
        for (int p = 0; p < 36; ++p) {
          ASSERT_EQ(int(patch[p * 3]), patch[0] + p / 6);
          ASSERT_EQ(int(patch[p * 3 + 1]), patch[1] + p % 6);
        }
      }
  }
  EXPECT_EQ(rows, (std::set<int>{0, 1, 2, 3})) << "a patch moves by less than the jitter";
  EXPECT_EQ(columns, rows);
  EXPECT_EQ(
      text_of(
          Pipeline("multi_crop([1, 1], [224, 255]) | patches(key='image1')", kDecoded, {}).spec()),
      "image u8 [1,224,224,3], image1 u8 [9,64,64,3]");
}

// The orders of nine patches: all differ, and every patch is equally often at each place. So no
// other set of this many orders has a larger mean distance.
TEST(Views, ShuffledPatchesTellTheirOrder) {
  std::map<int32_t, std::vector<int>> orders;
  for (int64_t position = 0; position < 1500; ++position) {
    const Sample s =
        made_by("patches(jitter=0) | shuffle_patches(permutations=90)", position, 0, 9, 9);
    const Array& a = array_in(s, "image");
    std::vector<int> order;
    for (int i = 0; i < 9; ++i) {
      const uint8_t* first = a.u8() + i * 3 * 3 * 3;
      order.push_back(int(first[1]) / 3 * 3 + int(first[0]) / 3);
    }
    const int32_t label = *array_in(s, "permutation").i32();
    const auto [known, fresh] = orders.emplace(label, order);
    ASSERT_TRUE(fresh || known->second == order) << label;
  }
  ASSERT_EQ(orders.size(), 90u);
  std::set<std::vector<int>> different;
  std::map<std::pair<size_t, int>, int> times;
  for (const auto& [label, order] : orders) {
    different.insert(order);
    for (size_t i = 0; i < 9; ++i) ++times[{i, order[i]}];
  }
  EXPECT_EQ(different.size(), 90u);
  const Sample any = made_by("patches(jitter=0) | shuffle_patches(0)", 3, 0, 9, 9);
  EXPECT_FALSE(any.contains("permutation")) << "any order has no number";
  EXPECT_NE(view_bytes(array_in(any, "image")),
            view_bytes(array_in(made_by("patches(jitter=0)", 3, 0, 9, 9), "image")));
  ASSERT_EQ(times.size(), 81u);
  for (const auto& [place, count] : times) EXPECT_EQ(count, 10);
}

TEST(Views, IndexIsTheNumberInTheSet) {
  Pipeline pipeline("index(key='number') | keep('number')", kDecoded, {});
  Sample sample;
  sample["image"] = numbered_image(2, 2);
  pipeline.apply(sample, 17, nullptr, nullptr, 5);
  EXPECT_EQ(*array_in(sample, "number").i32(), 5);
  sample["image"] = numbered_image(2, 2);
  expect_error(Exit::data, {"index", "number -1"}, [&] { pipeline.apply(sample, 17); });
}

TEST(Views, BadArgumentsNameTheWayOut) {
  const auto bad = [](const std::string& text, std::vector<std::string> parts) {
    SCOPED_TRACE(text);
    expect_error(Exit::config, parts, [&] { Pipeline(text, kDecoded, {}); });
  };
  bad("copies(0)", {"0 copies", "1 to 256"});
  bad("copies(2) | copies(2)", {"copies: field 'image' is u8 [2,?,?,3], not an image"});
  bad("copies(2) | resize(8)", {"resize: field 'image' is u8 [2,?,?,3]"});
  bad("copies(2) | flip_lr(p=[0.5, 0.5, 0.5])", {"p has 3 numbers for 2 views", "give one number"});
  bad("grayscale(p=[0.5, 0.5])", {"no views here", "put copies or multi_crop before it"});
  bad("grayscale(p=1.5)", {"p holds 1.5", "[0, 1]"});
  bad("normalize | color_distortion", {"is f32", "put it before the op that makes floats"});
  bad("multi_crop([2, 6], [224])", {"2 numbers of crops for 1 sizes"});
  bad("multi_crop([2, 6], [224, 96], scale=[[0.1, 1], [0.1, 1], [0.1, 1]])",
      {"3 pairs for 2 sizes"});
  bad("multi_crop([2, 6], [224, 96], scale=[0.5, 0.1])", {"[0.5, 0.1]", "smallest <= largest"});
  bad("multi_crop([2.5], [224])", {"counts holds 2.5", "whole numbers"});
  bad("copies(2) | multi_crop([2], [224])", {"multi_crop makes the views itself"});
  bad("random_resized_crop(96, scale=0.5)", {"scale", "a pair of numbers such as [0.1, 1]"});
  bad("random_resized_crop(96, ratio=[0, 1])", {"ratio", "0 < smallest"});
  bad("color_jitter(hue=0.6)", {"hue is 0.6", "0 to 0.5"});
  bad("gaussian_blur(radius=[2, 1])", {"radius", "[smallest, largest]"});
  bad("solarize(threshold=300)", {"threshold is 300", "0 to 256"});
  bad("normalize(mean=[1, 2])", {"mean has 2 numbers"});
  bad("normalize(std=0)", {"std holds 0"});
  bad("rotate(1)", {"1 angles", "2 to 360"});
  bad("copies(2) | rotate", {"u8 [2,?,?,3]", "put it before the op that makes views"});
  bad("patches(side=1)", {"1 patches a side", "2 to 16"});
  bad("random_resized_crop(60) | patches", {"[60,60,3]", "cells of 20 pixels", "jitter = 21"});
  bad("copies(2) | patches", {"u8 [2,?,?,3], not an image"});
  bad("copies(4) | shuffle_patches", {"not 9 views", "argument patches"});
  bad("copies(4) | shuffle_patches(patches=4)", {"2000 permutations", "2 to 24 for 4 patches"});
}

}  // namespace
}  // namespace data
