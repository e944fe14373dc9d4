// SPDX-License-Identifier: Apache-2.0
// Tests image files without a data set: their listing, and the ops that one field depends on.
#include "data/image_files.hpp"

#include <gtest/gtest.h>

#include <set>

#include "base/log.hpp"
#include "data/sources/file.hpp"
#include "support.hpp"

namespace data {
namespace {

TEST(ImageFiles, AreListedByEndingAndName) {
  test::TemporaryDirectory folder;
  std::filesystem::create_directories(folder / "b/.hidden");
  for (const char* name : {"b/2.PNG", "b/10.jpg", "a.webp", "a.txt", "none", ".gif", "b/.3.png",
                           "b/.hidden/4.png", "c.jpeg"})
    test::write_file(folder / name, "x");
  EXPECT_EQ(find_images({folder / "none", folder.path(), "no/such.png"}),
            (std::vector<std::string>{folder / "none", folder / "a.webp", folder / "b/10.jpg",
                                      folder / "b/2.PNG", folder / "c.jpeg", "no/such.png"}));
  test::expect_error(base::Exit::data, {"b/.hidden/none' holds no image", ".webp"}, [&] {
    std::filesystem::create_directories(folder / "b/.hidden/none");
    find_images({folder / "b/.hidden/none"});
  });
  for (const char* name : {"a.gif", "x/y.JPeG", "..png"}) EXPECT_TRUE(is_image_file(name)) << name;
  for (const char* name : {"gif", "x.gif/y", ".png", "x/.png", "a.gif2", "a.", ""})
    EXPECT_FALSE(is_image_file(name)) << name;
}

TEST(ImageFiles, LinksToFoldersAboveAreNotFollowed) {
  test::TemporaryDirectory folder;
  std::filesystem::create_directories(folder / "a/x");
  std::filesystem::create_directories(folder / "b");
  for (const char* name : {"1.png", "a/x/2.png", "b/3.png"}) test::write_file(folder / name, "x");
  std::filesystem::create_directory_symlink(".", folder / "again");
  std::filesystem::create_directory_symlink("../..", folder / "a/x/up");
  const int before = base::log::warnings_so_far();
  const std::vector<std::string> found{folder / "1.png", folder / "a/x/2.png", folder / "b/3.png"};
  EXPECT_EQ(find_images({folder.path()}), found);
  EXPECT_EQ(base::log::warnings_so_far() - before, 2);
  // Two folders with links to each other: every image is listed once on each path.
  std::filesystem::remove(folder / "again");
  std::filesystem::remove(folder / "a/x/up");
  std::filesystem::create_directory_symlink("../b", folder / "a/to_b");
  std::filesystem::create_directory_symlink("../a", folder / "b/to_a");
  EXPECT_EQ(
      find_images({folder.path()}),
      (std::vector<std::string>{folder / "1.png", folder / "a/to_b/3.png", folder / "a/x/2.png",
                                folder / "b/3.png", folder / "b/to_a/x/2.png"}));
}

// Random ops draw what they draw in the whole pipeline, and other fields are not needed.
TEST(ImageFiles, NeedTheOpsOfTheirFieldOnly) {
  const Spec input{{"picture", FieldSpec::array(device::DType::u8, {-1, -1, 3})},
                   {"text", FieldSpec::characters()}};
  const std::string ops =
      "lower | copy('picture', 'image') | randu('draw') | resize_small(9, key='image')"
      "| random_crop(4) | flip_lr | value_range(-1, 1) | keep('image', 'draw')";
  Pipeline whole(ops, input, {}, 7), part(ops, input, {}, 7);
  EXPECT_EQ(part.keep_only("image"), "picture");
  EXPECT_EQ(part.spec(), (Spec{{"image", whole.spec().at("image")}}));
  Array picture(device::DType::u8, {12, 10, 3});
  for (int64_t i = 0; i < picture.count(); ++i) picture.u8()[i] = uint8_t(i * 37 % 251);
  std::set<std::vector<float>> seen;
  for (int64_t position = 0; position < 8; ++position) {
    Sample all{{"picture", picture}, {"text", std::string("A")}}, alone{{"picture", picture}};
    whole.apply(all, position);
    part.apply(alone, position);
    const Array &want = std::get<Array>(all.at("image")), &got = std::get<Array>(alone.at("image"));
    ASSERT_EQ(got.shape, want.shape);
    EXPECT_EQ(std::memcmp(got.bytes.data(), want.bytes.data(), want.bytes.size()), 0) << position;
    EXPECT_FALSE(alone.contains("draw"));
    seen.insert({want.f32(), want.f32() + want.count()});
  }
  EXPECT_GT(seen.size(), 4u);
  Pipeline made("coco_captions('words')", {{"captions", FieldSpec::list_of_texts()}}, {});
  EXPECT_EQ(made.keep_only("words"), "");
}

}  // namespace
}  // namespace data
