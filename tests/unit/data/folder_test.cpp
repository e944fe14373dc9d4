// SPDX-License-Identifier: Apache-2.0
// Tests image folders with captions files, good and bad.
#include "data/sources/folder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/sources/captions_file.hpp"
#include "data/sources/file.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

struct FolderTest : testing::Test {
  test::TemporaryDirectory dir;
  FolderOptions options;
  OpenContext context;
  FolderTest() {
    std::filesystem::create_directories(dir / "images/sub");
    for (std::string name : {"a.jpg", "sub/b.jpg", "c.jpg"})
      test::write_file(dir / ("images/" + name), "JPEG " + name);
    options.path = dir / "images";
  }
  std::unique_ptr<Source> open(const std::string& name, const std::string& text,
                               bool by_image = true) {
    options.captions = dir / name;
    options.by_image = by_image;
    test::write_file(options.captions, text);
    return options.open(context);
  }
  static std::string bytes(const Value& v) {
    const Bytes& b = std::get<Bytes>(v);
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }
};

const char* kTsv = "sub/b.jpg\tfirst\r\na.jpg\tone\tand a tab\n\nsub/b.jpg\tsecond\nc.jpg\t\n";
const char* kCoco = R"({"info": {"id": 5, "deep": [[{"caption": 1}]]}, "licenses": [{"id": 1}],
  "annotations": [{"image_id": 10, "id": 1, "caption": "first", "bbox": [1, 2]},
                  {"image_id": 30, "id": 2, "caption": "one\tand a tab"},
                  {"image_id": 10, "id": 3, "caption": "second"}, {"image_id": 40, "id": 4, "caption": ""}],
  "images": [{"id": 30, "file_name": "a.jpg", "height": 5}, {"id": 10, "file_name": "sub/b.jpg"},
             {"id": 40, "file_name": "c.jpg"}, {"id": 50, "file_name": "unused.jpg"}]})";

TEST_F(FolderTest, TsvAndCocoAreTheSame) {
  for (auto [name, text] : {std::pair{"c.tsv", kTsv}, {"c.json", kCoco}}) {
    SCOPED_TRACE(name);
    std::unique_ptr<Source> source = open(name, text);
    ASSERT_EQ(source->size(), 3);
    EXPECT_EQ(source->key(0), dir / "images/sub/b.jpg");
    Sample s = source->read(0);
    EXPECT_EQ(bytes(s["image"]), "JPEG sub/b.jpg");
    EXPECT_EQ(std::get<Texts>(s["captions"]), (Texts{"first", "second"}));
    EXPECT_EQ(std::get<Texts>(source->read(1)["captions"]), (Texts{"one\tand a tab"}));
    EXPECT_EQ(std::get<Texts>(source->read(2)["captions"]), (Texts{""}));
    for (auto& [field, known] : options.spec()) EXPECT_EQ(mismatch(known, s[field]), "") << field;
    source = open(name, text, false);
    ASSERT_EQ(source->size(), 4);
    EXPECT_EQ(source->key(1), dir / "images/sub/b.jpg#1");
    s = source->read(1);
    EXPECT_EQ(std::get<std::string>(s["text"]), "second");
    EXPECT_EQ(bytes(s["image"]), "JPEG sub/b.jpg");
    EXPECT_EQ(bytes(source->read(2)["image"]), "JPEG a.jpg");
    for (auto& [field, known] : options.spec()) EXPECT_EQ(mismatch(known, s[field]), "") << field;
  }
  EXPECT_EQ(open("c.json", kCoco)->summary(),
            "3 images, 4 captions, 1 images without a caption left out");
}

TEST_F(FolderTest, CocoAsOthersWriteIt) {
  const std::string text = R"({"images": [{"id": "x", "file_name": "a.jpg", "score": NaN},
    {"id": 7.0, "file_name": "c.jpg"}], "annotations": [{"image_id": 7, "caption": "two\r\nlines\n"},
    {"image_id": "x", "caption": "one", "area": -Infinity}]})";
  const std::unique_ptr<Source> source = open("C.JSON", text);
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->key(0), dir / "images/c.jpg");
  EXPECT_EQ(std::get<Texts>(source->read(0)["captions"]), Texts{"two lines"});
  EXPECT_EQ(std::get<Texts>(source->read(1)["captions"]), Texts{"one"});
}

TEST_F(FolderTest, QuotesThatAreRemovedAreCounted) {
  EXPECT_EQ(open("c.tsv", "a.jpg\t\"x\"\n")->summary(),
            "1 images, 1 captions, quotes around 1 cells removed");
}

// Tables and disks come from different systems.
TEST_F(FolderTest, MissingNamesThatLookAlike) {
  test::write_file(dir / "images/caf\u00e9.jpg", "JPEG");
  expect_error(Exit::data, {"caf\u00e9.jpg\" exists", "another form of Unicode (NFC, NFD)"},
               [&] { open("c.tsv", "cafe\u0301.jpg\tx\n"); });
  expect_error(Exit::data, {"\"a.jpg\" exists, with other capitals"},
               [&] { open("c.tsv", "A.JPG\tx\n"); });
  context.substitutes = true;
  expect_error(Exit::data, {"no such file; \"b.jpg\" exists"},
               [&] { open("c.tsv", "a.jpg\tx\nsub/B.jpg\tx\n")->read(1); });
}

// A substitute can replace each of these samples.
TEST_F(FolderTest, WhatIsNoImageFileIsTheFaultOfItsSample) {
  std::filesystem::create_directory(dir / "images/folder.jpg");
  ASSERT_EQ(::mkfifo((dir / "images/pipe.jpg").c_str(), 0600), 0);
  context.substitutes = true;
  std::unique_ptr<Source> source =
      open("c.tsv", "folder.jpg\tx\npipe.jpg\tx\nnone.jpg\tx\na.jpg\tx\n");
  EXPECT_EQ(
      source->summary(),
      "4 images, 4 captions, no such file for 3 of 4 images: folder.jpg, pipe.jpg, none.jpg (1 are "
      "pipes, sockets or devices) (bad samples)");
  for (auto [index, text] :
       {std::pair{0, "folder"}, {1, "not a regular file"}, {2, "no such file"}}) {
    try {
      source->read(index);
      ADD_FAILURE() << text;
    } catch (const Unreadable& e) {
      ADD_FAILURE() << e.what();
    } catch (const base::Error& e) {
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  }
  EXPECT_NO_THROW(source->read(3));
}

TEST_F(FolderTest, BadCaptions) {
  auto bad = [&](const char* name, const std::string& text, std::vector<std::string> parts) {
    SCOPED_TRACE(text.substr(0, 60));
    expect_error(Exit::data, parts, [&] { open(name, text); });
  };
  bad("c.tsv", "a.jpg\tx\nb.jpg words\n", {"c.tsv' line 2", "no tab", "b.jpg words"});
  bad("c.tsv", "a.jpg\tx\n../../etc/passwd\tx\n", {"line 2", "../../etc/passwd", "leads out"});
  bad("c.tsv", "/etc/passwd\tx\n", {"line 1", "absolute"});
  bad("c.tsv", "\tx\n", {"line 1", "is empty"});
  bad("c.tsv", "a\x1b[2J.jpg\tx\n", {"line 1", "control"});
  bad("c.tsv", "a.jpg\t" + std::string((1 << 20) + 1, 'x') + "\n",
      {"line 1", "1048577 bytes", "at most"});
  EXPECT_EQ(open("c.tsv", "a.jpg\t" + std::string(1 << 20, 'x') + "\n")->size(), 1);
  bad("c.tsv", "", {"c.tsv", "no captions"});
  bad("c.tsv",
      std::string("\xff\xfe"
                  "a\0",
                  4),
      {"c.tsv' is UTF-16"});
  bad("c.json", "[]", {"c.json", "no captions"});
  bad("c.json", "{\"images\": [", {"c.json", "JSON"});
  bad("c.json", std::string(100'000, '['), {"c.json", "JSON"});
  bad("c.json", R"({"images": [{"id": 1}]})", {"images[0]", "\"file_name\""});
  bad("c.json", R"({"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]})",
      {"images[1]", "id 1"});
  bad("c.json", R"({"annotations": [{"image_id": 1, "caption": 5}]})",
      {"annotations[0]", "\"caption\""});
  bad("c.json", R"({"annotations": [{"image_id": 1.5, "caption": ""}]})",
      {"annotations[0]", "\"image_id\""});
  bad("c.json", R"({"images": [], "annotations": [{"image_id": 7, "caption": ""}]})",
      {"annotations[0]", "image 7"});
  bad("c.json",
      R"({"images": [{"id": 1, "file_name": "../x"}], "annotations": [{"image_id": 1, "caption": ""}]})",
      {"annotations[0]", "../x", "leads out"});
  bad("c.txt", "a,b\n", {"neither .tsv, .csv, .jsonl nor .json"});
}

TEST_F(FolderTest, MissingFilesAreBadSamples) {
  context.substitutes = true;
  std::unique_ptr<Source> source = open("c.tsv", "a.jpg\tx\nnone.jpg\ty\nbig.jpg\tz\n");
  source->read(0);
  expect_error(Exit::data, {"no such file"}, [&] { source->read(1); });
  test::write_file(dir / "images/big.jpg", "");
  ASSERT_EQ(::truncate((dir / "images/big.jpg").c_str(), kMostMemberBytes + 1), 0);
  expect_error(Exit::data, {"268435457 bytes", "at most 268435456"}, [&] { source->read(2); });
  ASSERT_EQ(::truncate((dir / "images/big.jpg").c_str(), kMostMemberBytes), 0);
  EXPECT_EQ(int64_t(std::get<Bytes>(source->read(2).at("image")).size()), kMostMemberBytes);
  options.path = dir / "nowhere";
  expect_error(Exit::data, {"no folder", "nowhere"}, [&] { options.open({}); });
}

// Missing images are found before the first step, by one listing of each folder (issue 20, F5).
TEST_F(FolderTest, MissingFilesEndTheStart) {
  auto missing = [&](const std::string& text, std::vector<std::string> parts) {
    expect_error(Exit::data, parts, [&] { open("c.tsv", text); });
  };
  missing("a.jpg\tx\nnone.jpg\ty\nsub/none.jpg\tz\nsub/b.jpg\tu\nnowhere/a.jpg\tv\n",
          {"no such file for 3 of 5 images: none.jpg, sub/none.jpg, nowhere/a.jpg;", "c.tsv",
           dir / "images", "substitute"});
  missing("sub\tx\na.jpg\ty\n", {"1 of 2 images: sub;"});  // a folder is no image
  std::string many = "a.jpg\tx\n";
  for (int i = 0; i < 1200; ++i) many += fmt::format("{}.jpg\tx\n", i);
  missing(many, {"1,200 of 1,201 images: 0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg, ...;"});
  // A header with unknown names looks like an image.
  missing("picture\twords\na.jpg\tx\n", {"\"picture\" is the name of a column", "image_column"});
  // A set without any existing file is a mistake in the deck, even with substitutes.
  context.substitutes = true;
  EXPECT_EQ(open("c.tsv", "a.jpg\tx\nnone.jpg\ty\n")->size(), 2);
  missing("none.jpg\ty\n", {"1 of 1 images"});
  context.substitutes = false;
  // A link counts as its target.
  std::filesystem::create_symlink(dir / "images/a.jpg", dir / "images/link.jpg");
  std::filesystem::create_symlink(dir / "images/gone", dir / "images/broken.jpg");
  std::filesystem::create_directory_symlink(dir / "images/sub", dir / "images/also");
  EXPECT_EQ(open("c.tsv", "link.jpg\tx\nalso/b.jpg\ty\n")->size(), 2);
  std::filesystem::create_symlink("loop.jpg", dir / "images/loop.jpg");
  missing("broken.jpg\tx\nlink.jpg\ty\nloop.jpg\tz\n",
          {"2 of 3 images: broken.jpg, loop.jpg (2 are links that lead nowhere);"});
  context.substitutes = true;
  std::unique_ptr<Source> source = open("c.tsv", "loop.jpg\tz\nlink.jpg\ty\nbroken.jpg\tx\n");
  for (int64_t i : {0, 2}) try {
      source->read(i);
      ADD_FAILURE() << i;
    } catch (const Unreadable& e) {
      ADD_FAILURE() << e.what();
    } catch (const base::Error& e) {
      EXPECT_EQ(std::string(e.what()), "there is no such file");
    }
  context.substitutes = false;
  // Only the job's first rank checks the images.
  base::set_rank(1, 2);
  EXPECT_EQ(open("c.tsv", "a.jpg\tx\nnone.jpg\ty\n")->size(), 2);
  base::set_rank(0, 1);
}

TEST_F(FolderTest, ImagesBesideTheCaptions) {
  options.path = "";
  std::unique_ptr<Source> source = open("images/c.tsv", "sub/b.jpg\tx\na.jpg\ty\n");
  EXPECT_EQ(source->key(1), dir / "images/a.jpg");
  EXPECT_EQ(options.files(),
            (std::vector<std::string>{dir / "images/sub/b.jpg", dir / "images/a.jpg"}));
  expect_error(Exit::data, {"1 of 1 images: a.jpg", "set path if"},
               [&] { open("c.tsv", "a.jpg\ty\n"); });
}

TEST_F(FolderTest, SeveralFilesOfCaptions) {
  test::write_file(dir / "p-0.tsv", "a.jpg\tone\nc.jpg\ttwo\n");
  test::write_file(dir / "p-1.csv", "caption,path\nthree,a.jpg\n");
  for (std::string pattern : {"p-*", "p-{0.tsv,1.csv}", "p-[01].?sv"}) {
    SCOPED_TRACE(pattern);
    options.captions = dir / pattern;
    options.by_image = true;
    std::unique_ptr<Source> source = options.open({});
    ASSERT_EQ(source->size(), 2);
    EXPECT_EQ(std::get<Texts>(source->read(0)["captions"]), (Texts{"one", "three"}));
  }
  options.path = "";
  options.captions = dir / "{p-0.tsv,images/c.tsv}";
  test::write_file(dir / "images/c.tsv", "a.jpg\tx\n");
  expect_error(Exit::data, {"p-0.tsv", "images/c.tsv", "different folders", "path"},
               [&] { options.open({}); });
}

}  // namespace
}  // namespace data
