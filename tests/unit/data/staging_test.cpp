// SPDX-License-Identifier: Apache-2.0
// Tests copies on node-local disk: made once, checked, whole or absent.
#include "data/sources/staging.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/sources/file.hpp"
#include "data/sources/folder.hpp"
#include "data/sources/webdataset.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;
using test::TarText;

struct StagingTest : testing::Test {
  test::TemporaryDirectory dir;
  std::string stage = dir / "local/stage";
  std::vector<std::string> shards;

  StagingTest() {
    std::filesystem::create_directory(dir / "a");
    std::filesystem::create_directory(dir / "b");
    for (const char* name : {"a/s-0.tar", "a/s-1.tar", "b/s-0.tar"}) {
      shards.push_back(dir / name);
      TarText tar;
      for (int i = 0; i < 5; ++i) tar.add(fmt::format("{}.txt", i), fmt::format("{} {}", name, i));
      test::write_file(shards.back(), tar.end());
    }
  }
  std::vector<std::string> staged_names() const {
    std::vector<std::string> out;
    for (auto& entry : std::filesystem::directory_iterator(stage))
      out.push_back(entry.path().filename().string());
    return out;
  }
};

TEST_F(StagingTest, CopiesOnceAndChecks) {
  Staged first = stage_files(shards, stage, 2);
  EXPECT_EQ(first.files, 3);
  EXPECT_EQ(first.copied_files, 3);
  EXPECT_EQ(first.copied_bytes, first.bytes);
  EXPECT_EQ(staged_names().size(), 3u)
      << "two shards of one name are both staged, without other files";
  for (const std::string& path : shards) {
    EXPECT_EQ(test::read_file(staged_path(stage, path)), test::read_file(path));
    EXPECT_EQ(File(staged_path(stage, path)).modified_ns(), File(path).modified_ns());
  }
  EXPECT_EQ(stage_files(shards, stage, 2).copied_files, 0);
  // A copy with another size or time, or one that was cut, is made again.
  test::write_file(shards[0], TarText().add("x.txt", "new").end());
  timespec times[2] = {{0, UTIME_OMIT}, {1'000'000, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, shards[1].c_str(), times, 0), 0);
  ASSERT_EQ(::truncate(staged_path(stage, shards[2]).c_str(), 100), 0);
  EXPECT_EQ(stage_files(shards, stage, 1).copied_files, 3);
  for (const std::string& path : shards)
    EXPECT_EQ(test::read_file(staged_path(stage, path)), test::read_file(path));
}

// A file of equal size and time may take the place of the original.
TEST_F(StagingTest, CopiesWhatTookTheOriginalsPlace) {
  stage_files({shards[0]}, stage, 1);
  std::filesystem::rename(shards[0], dir / "old");
  std::string other = test::read_file(dir / "old");
  other.replace(other.find("a/s-0.tar 3"), 11, "another one");
  const int64_t copied = File(staged_path(stage, shards[0])).changed_ns();
  do {  // clocks are coarse
    test::write_file(shards[0], other);
    std::filesystem::last_write_time(shards[0], std::filesystem::last_write_time(dir / "old"));
  } while (File(shards[0]).changed_ns() <= copied);
  EXPECT_EQ(File(shards[0]).modified_ns(), File(dir / "old").modified_ns());
  EXPECT_EQ(stage_files({shards[0]}, stage, 1).copied_files, 1);
  EXPECT_EQ(test::read_file(staged_path(stage, shards[0])), other);
}

TEST_F(StagingTest, TheSourceReadsTheCopies) {
  WebdatasetOptions options;
  options.path = dir / "a/s-{0..1}.tar";
  options.fields = {{"text", "txt"}};
  EXPECT_EQ(options.files(), (std::vector<std::string>{shards[0], shards[1]}));
  stage_files(options.files(), stage, 1);
  // The copy has another text, which shows the file that is read.
  std::string copy = staged_path(stage, shards[0]), text = test::read_file(copy);
  text.replace(text.find("a/s-0.tar 3"), 11, "local copy!");
  const auto time = std::filesystem::last_write_time(copy);
  test::write_file(copy, text);
  expect_error(Exit::data, {"s-0.tar' has changed"}, [&] {
    options.open({.stage_dir = stage})->read(3);  // the copy has another time than its original
  });
  std::filesystem::last_write_time(copy, time);
  std::unique_ptr<Source> source = options.open({.stage_dir = stage});
  EXPECT_EQ(std::get<std::string>(source->read(3).at("text")), "local copy!");
  EXPECT_EQ(source->key(3), shards[0] + ":3") << "messages name the original";
  EXPECT_EQ(std::get<std::string>(options.open({})->read(3).at("text")), "a/s-0.tar 3");
}

TEST_F(StagingTest, ImagesOfAFolder) {
  FolderOptions options;
  options.path = dir / "images";
  options.captions = dir / "captions.tsv";
  std::filesystem::create_directories(dir / "images/sub");
  test::write_file(options.captions, "a.jpg\tx\nsub/a.jpg\ty\nnone.jpg\tz\n");
  test::write_file(dir / "images/a.jpg", "one");
  test::write_file(dir / "images/sub/a.jpg", "two");
  EXPECT_EQ(stage_files(options.files(), stage, 2).copied_files, 2)
      << "a missing image is an error of its sample";
  test::write_file(staged_path(stage, dir / "images/sub/a.jpg"), "TWO");
  std::filesystem::remove(staged_path(stage, dir / "images/a.jpg"));
  expect_error(Exit::data, {"no such file for 1 of 3 images: none.jpg"},
               [&] { options.open({.stage_dir = stage}); });
  std::filesystem::rename(dir / "images/sub", dir / "images/gone");
  // sub/a.jpg is missing, too, but has a staged copy.
  expect_error(Exit::data, {"1 of 3 images: none.jpg"},
               [&] { options.open({.stage_dir = stage}); });
  std::filesystem::rename(dir / "images/gone", dir / "images/sub");
  std::unique_ptr<Source> source = options.open({.substitutes = true, .stage_dir = stage});
  auto image = [&](int64_t i) {
    Sample s = source->read(i);
    const Bytes& b = std::get<Bytes>(s.at("image"));
    return std::string(reinterpret_cast<const char*>(b.data()), b.size());
  };
  EXPECT_EQ(image(0), "one") << "without a copy the original is read";
  EXPECT_EQ(image(1), "TWO");
  EXPECT_EQ(source->key(1), dir / "images/sub/a.jpg");
  expect_error(Exit::data, {"there is no such file"}, [&] { image(2); });
}

TEST_F(StagingTest, NotEnoughSpace) {
  std::string huge = dir / "huge.tar";
  test::write_file(huge, "");
  // A sparse file is larger than any disk here.
  ASSERT_EQ(::truncate(huge.c_str(), int64_t{8} << 40), 0);
  shards.push_back(huge);
  expect_error(Exit::data,
               {"loader.stage_dir", stage, "GiB free", "8192.00 GiB in 4 files", "read in place"},
               [&] { stage_files(shards, stage, 2); });
  EXPECT_TRUE(staged_names().empty()) << "no file is copied in vain";
}

TEST_F(StagingTest, Failures) {
  // Only its source knows if a file may be missing.
  EXPECT_EQ(stage_files({dir / "none.tar", dir / "a"}, stage, 1).files, 0);
  WebdatasetOptions options;
  options.path = dir / "none.tar";
  options.fields = {{"text", "txt"}};
  expect_error(Exit::data, {"none.tar", "No such file"},
               [&] { options.open({.stage_dir = stage}); });
  test::write_file(dir / "file", "");
  expect_error(Exit::data, {"loader.stage_dir", "file"},
               [&] { stage_files(shards, dir / "file/stage", 1); });
  // With a directory in the way of a copy, the temporary file is removed as well.
  std::filesystem::create_directories(staged_path(stage, shards[1]) + "/x");
  expect_error(Exit::data, {"loader.stage_dir"}, [&] { stage_files(shards, stage, 1); });
  for (const std::string& name : staged_names()) EXPECT_EQ(name.find("copying"), name.npos) << name;
}

TEST(Staging, Variables) {
  ::setenv("TRAINER_TEST_DIR", "/scratch/7", 1);
  ::unsetenv("TRAINER_TEST_NONE");
  EXPECT_EQ(expand_variables("$TRAINER_TEST_DIR"), "/scratch/7");
  EXPECT_EQ(expand_variables("/x/${TRAINER_TEST_DIR}_y/$TRAINER_TEST_DIR/z"),
            "/x//scratch/7_y//scratch/7/z");
  EXPECT_EQ(expand_variables("/plain"), "/plain");
  expect_error(Exit::config, {"TRAINER_TEST_NONE", "not set"},
               [] { expand_variables("$TRAINER_TEST_NONE/a"); });
  for (const char* bad : {"$", "a/$/b", "${X", "${}"})
    expect_error(Exit::config, {"$NAME"}, [&] { expand_variables(bad); });
}

}  // namespace
}  // namespace data
