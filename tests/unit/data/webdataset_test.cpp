// SPDX-License-Identifier: Apache-2.0
#include "data/sources/webdataset.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/log.hpp"
#include "data/sources/brace.hpp"
#include "data/sources/file.hpp"
#include "data/sources/tar_index.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;
using test::TarText;

TEST(Brace, Expands) {
  using List = std::vector<std::string>;
  EXPECT_EQ(expand_braces("a.tar"), List{"a.tar"});
  EXPECT_EQ(expand_braces("a-{008..011}.tar"),
            (List{"a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"}));
  EXPECT_EQ(expand_braces("{a,b}/{0..1}.tar"), (List{"a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"}));
  EXPECT_EQ(expand_braces("x{9..10}"), (List{"x9", "x10"}));
  EXPECT_EQ(expand_braces("{000009..000010}"), (List{"000009", "000010"}));
  EXPECT_EQ(expand_braces("{9..010}"), (List{"009", "010"})) << "one padded number pads all";
  EXPECT_EQ(expand_braces("{08..100}").front(), "008");
  EXPECT_EQ(expand_braces("{0..10}").front(), "0");
  EXPECT_EQ(expand_braces("x{7..7}"), List{"x7"});
  for (const char* bad :
       {"a{0..", "a}b", "{}", "{a}", "{3..1}", "{a..c}", "{{0..1},2}", "{0..99999999}"})
    expect_error(Exit::config, {"'"}, [&] { expand_braces(bad); });
  // Neither many names nor long ones fill the memory, and the check makes no names.
  check_braces("{0..999999}");
  expect_error(Exit::config, {"more than 1000000 names"},
               [] { expand_braces("{0..999}{0..999}{a,b}"); });
  expect_error(Exit::config, {"256 MiB"},
               [] { expand_braces("{0..999999}" + std::string(1000, 'x')); });
}

struct WebdatasetTest : testing::Test {
  test::TemporaryDirectory dir;
  OpenContext context;
  WebdatasetOptions options;

  WebdatasetTest() {
    options.path = dir / "s-{0..2}.tar";
    options.fields = {{"image", "png"}, {"text", "txt"}, {"label", "cls"}};
  }
  void shard(int number, int from, int to, const std::string& more = "") {
    TarText tar;
    for (int i = from; i < to; ++i) {
      std::string key = fmt::format("{:04}", i);
      tar.add(key + ".png", "PNG" + key)
          .add(key + ".json", "{}")
          .add(key + ".txt", "caption " + key)
          .add(key + ".cls", fmt::format("{}\n", i % 7));
    }
    tar.text += more;
    test::write_file(dir / fmt::format("s-{}.tar", number), tar.end());
  }
  void three_shards() {
    shard(0, 0, 5);
    shard(1, 5, 5);  // empty
    shard(2, 5, 12);
  }
};

std::string text_in(const Value& v) {
  if (auto* b = std::get_if<Bytes>(&v))
    return {reinterpret_cast<const char*>(b->data()), b->size()};
  return std::get<std::string>(v);
}

TEST_F(WebdatasetTest, ReadsAnySample) {
  three_shards();
  std::unique_ptr<Source> source = options.open(context);
  ASSERT_EQ(source->size(), 12);
  EXPECT_EQ(source->summary(), "3 tars");
  for (int64_t i : {11, 0, 5, 4, 7}) {
    Sample s = source->read(i);
    ASSERT_EQ(s.size(), 3u);
    EXPECT_EQ(text_in(s["image"]), fmt::format("PNG{:04}", i));
    EXPECT_EQ(text_in(s["text"]), fmt::format("caption {:04}", i));
    EXPECT_EQ(std::get<Array>(s["label"]).i32()[0], i % 7);
    for (auto& [field, known] : options.spec()) EXPECT_EQ(mismatch(known, s[field]), "") << field;
  }
  EXPECT_EQ(source->key(5), dir / "s-2.tar:0005");
}

// Editors put marks and line breaks into files of one line.
TEST_F(WebdatasetTest, TextsOfEditors) {
  const std::string mark = "\xEF\xBB\xBF";
  TarText tar;
  tar.add("0.png", "PNG").add("0.txt", mark + "two\r\nlines\r\n").add("0.cls", mark + "3.0\r\n");
  test::write_file(dir / "s.tar", tar.end());
  options.path = dir / "s.tar";
  Sample s = options.open(context)->read(0);
  EXPECT_EQ(text_in(s["text"]), "two lines");
  EXPECT_EQ(std::get<Array>(s["label"]).i32()[0], 3);
}

TEST_F(WebdatasetTest, FingerprintTellsCopiesApart) {
  three_shards();
  uint64_t first = options.open(context)->fingerprint();
  EXPECT_EQ(options.open(context)->fingerprint(), first)
      << "the stored index gives the same fingerprint";
  auto changed = [&](auto change) {
    three_shards();
    change();
    return options.open(context)->fingerprint();
  };
  EXPECT_EQ(changed([] {}), first) << "equal shards with a later time";
  EXPECT_NE(changed([&] { shard(2, 5, 11); }), first) << "one sample less";
  EXPECT_NE(changed([&] { shard(2, 6, 13); }), first) << "equally many samples, other keys";
  EXPECT_NE(changed([&] {
              shard(1, 5, 7);
              shard(2, 7, 12);
            }),
            first)
      << "equal samples in other shards";
  // The new shard has the same keys and another size of one member.
  EXPECT_NE(changed([&] {
              TarText tar;
              for (int i = 0; i < 5; ++i) {
                std::string key = fmt::format("{:04}", i);
                tar.add(key + ".png", "PNG" + key)
                    .add(key + ".txt", i ? "caption" : "longer")
                    .add(key + ".cls", "1");
              }
              test::write_file(dir / "s-0.tar", tar.end());
            }),
            first);
}

TEST_F(WebdatasetTest, ShardThatChangesWhileItIsOpenIsNoticed) {
  three_shards();
  std::unique_ptr<Source> source = options.open(context);
  EXPECT_NO_THROW(source->read(0));
  std::string bytes = test::read_file(dir / "s-0.tar");
  // the same file, other bytes
  std::fstream file(dir / "s-0.tar", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(600);
  file.put('!');
  file.close();
  std::this_thread::sleep_for(std::chrono::milliseconds(5200));
  EXPECT_THROW(source->read(0), Unreadable);
  EXPECT_NO_THROW(source->read(7));  // this sample is in another shard
}

TEST_F(WebdatasetTest, ShardThatIsReplacedBeforeItIsReadIsNoticed) {
  three_shards();
  std::unique_ptr<Source> source = options.open(context);
  auto time = std::filesystem::last_write_time(dir / "s-0.tar"),
       later = time + std::chrono::nanoseconds(1);
  auto size = std::filesystem::file_size(dir / "s-0.tar");
  shard(0, 50, 55);
  ASSERT_EQ(std::filesystem::file_size(dir / "s-0.tar"), size);
  std::filesystem::last_write_time(dir / "s-0.tar", later);
  EXPECT_THROW(source->read(0), Unreadable);
  EXPECT_NO_THROW(source->read(7));
}

TEST_F(WebdatasetTest, ShardThatIsReplacedByOneOfEqualSizeAndTimeIsNoticed) {
  three_shards();
  std::unique_ptr<Source> source = options.open(context);
  const std::string path = dir / "s-0.tar";
  // Another name of the file changes its entry alone.
  std::filesystem::create_hard_link(path, dir / "old.tar");
  EXPECT_NO_THROW(source->read(0));
  source = options.open(context);
  std::filesystem::remove(path);
  shard(0, 50, 55);
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(dir / "old.tar"));
  ASSERT_EQ(File(path).size(), File(dir / "old.tar").size());
  ASSERT_EQ(File(path).modified_ns(), File(dir / "old.tar").modified_ns());
  EXPECT_THROW(source->read(0), Unreadable);
  EXPECT_NO_THROW(source->read(7));
}

TEST_F(WebdatasetTest, IndexIsKeptAndChecked) {
  three_shards();
  std::string path = dir / "s-2.tar.index";
  options.open({.write_index = false});
  EXPECT_FALSE(std::filesystem::exists(path));
  options.open(context);
  ASSERT_TRUE(std::filesystem::exists(path));
  struct stat info;
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
  // With a valid index, the source does not read the shard's headers again.
  std::string index = test::read_file(path);
  const File file_2(dir / "s-2.tar");
  TarIndex other = build_tar_index(file_2);
  other.keys[0] = "changed";
  test::write_file(path, encode_tar_index(other, file_2.state()));
  EXPECT_EQ(options.open(context)->key(5), dir / "s-2.tar:changed");
  // A damaged index, or one of an older shard, is made again.
  test::write_file(path, index.substr(0, index.size() / 2));
  EXPECT_EQ(options.open(context)->key(5), dir / "s-2.tar:0005");
  EXPECT_EQ(test::read_file(path), index);
  shard(2, 5, 20);
  EXPECT_EQ(options.open(context)->size(), 20);
  // The shard changes its time but not its size, then its size but not its time. The index is made
  // again (mutant D6).
  std::string file = dir / "s-2.tar";
  auto size = std::filesystem::file_size(file);
  auto time = std::filesystem::last_write_time(file) + std::chrono::nanoseconds(1);
  shard(2, 99, 114);
  ASSERT_EQ(std::filesystem::file_size(file), size);
  std::filesystem::last_write_time(file, time);
  EXPECT_EQ(options.open(context)->key(5), file + ":0099");
  shard(2, 100, 120);  // the places in the old index are valid here too
  std::filesystem::last_write_time(file, time);
  EXPECT_EQ(options.open(context)->key(5), file + ":0100");
}

TEST_F(WebdatasetTest, IndexElsewhere) {
  three_shards();
  options.open({.index_dir = dir / "indexes", .run_index_dir = dir / "run"});
  int files = 0;
  for (auto& entry : std::filesystem::directory_iterator(dir / "indexes"))
    files += entry.path().extension() == ".index";
  EXPECT_EQ(files, 3);
  EXPECT_FALSE(std::filesystem::exists(dir / "s-0.tar.index"));
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
  // If the first place is not writable, the run directory gets the indexes. (A file blocks a
  // directory here, which stops root, too.)
  test::write_file(dir / "blocked", "");
  options.open({.index_dir = dir / "blocked", .run_index_dir = dir / "run/index"});
  files = 0;
  for (auto& entry : std::filesystem::directory_iterator(dir / "run/index"))
    files += entry.path().extension() == ".index";
  EXPECT_EQ(files, 3);
}

TEST_F(WebdatasetTest, ManyBuildAtOnce) {
  for (int s = 0; s < 3; ++s) shard(s, s * 100, s * 100 + 100);
  std::vector<std::jthread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&] {
      OpenContext mine{.threads = 2};
      std::unique_ptr<Source> source = options.open(mine);
      good += source->size() == 300 && text_in(source->read(250)["text"]) == "caption 0250";
    });
  threads.clear();
  EXPECT_EQ(good, 6);
  for (auto& entry : std::filesystem::directory_iterator(dir.path()))
    EXPECT_TRUE(entry.path().extension() == ".tar" || entry.path().extension() == ".index")
        << entry.path();
}

TEST_F(WebdatasetTest, MissingMember) {
  shard(0, 0, 5);
  shard(1, 5, 9,
        TarText()
            .add("0009.png", "P")
            .add("0009.cls", "1")
            .add("0010.png", "P")
            .add("0010.cls", "2")
            .text);
  shard(2, 11, 12);
  expect_error(Exit::data,
               {"field 'text'", "2 of 12", ".txt", "s-1.tar:0009", ".cls .json .png .txt"},
               [&] { options.open(context); });
  // With substitutes, a missing member is an error of the sample. A member that no sample has is
  // still a mistake in the deck.
  OpenContext replacing = context;
  replacing.substitutes = true;
  std::unique_ptr<Source> source = options.open(replacing);
  EXPECT_EQ(text_in(source->read(8)["text"]), "caption 0008");
  expect_error(Exit::data, {"no member .txt"}, [&] { source->read(9); });
  expect_error(Exit::data, {"12 of 12", ".jpg"}, [&] {
    options.fields = {{"image", "jpg"}};
    options.open(replacing);
  });
  options.fields = {{"image", "jpg"}};
  expect_error(Exit::data, {"12 of 12", ".jpg", ".png"}, [&] { options.open(context); });
}

TEST_F(WebdatasetTest, ExtensionsInAnyCapitals) {
  options.path = dir / "m.tar";
  test::write_file(options.path, TarText()
                                     .add("0.JPG", "I 0")
                                     .add("0.TXT", "one")
                                     .add("0.Cls", "5")
                                     .add("1.jpg", "I 1")
                                     .add("1.txt", "two")
                                     .add("1.CLS", "6")
                                     .end());
  for (const char* image : {"jpg", "JPG", "jpg;JPG"}) {
    options.fields = {{"image", image}, {"text", "Txt"}, {"label", "CLS"}};
    EXPECT_EQ(text_of(options.spec()), "image encoded bytes, label i32 [], text text");
    std::unique_ptr<Source> source = options.open(context);
    ASSERT_EQ(source->size(), 2);
    EXPECT_EQ(text_in(source->read(0)["text"]), "one");
    EXPECT_EQ(*std::get<Array>(source->read(1)["label"]).i32(), 6);
  }
}

// Shards of img2dataset have images of several extensions in one set (issue 20, F3).
TEST_F(WebdatasetTest, FirstExtensionThatASampleHas) {
  options.path = dir / "m.tar";
  options.fields = {{"image", "jpg;jpeg; png;webp"}, {"text", "txt"}};
  TarText tar;
  for (std::string e : {"png", "jpg", "webp", "jpeg"})
    tar.add(e + "." + e, "I " + e).add(e + ".txt", e);
  tar.add("two.png", "PNG").add("two.jpg", "JPG").add("two.webp", "WEBP").add("two.txt", "");
  test::write_file(options.path, tar.end());
  std::unique_ptr<Source> source = options.open(context);
  ASSERT_EQ(source->size(), 5);
  for (auto [i, text] :
       {std::pair{0, "I png"}, {1, "I jpg"}, {2, "I webp"}, {3, "I jpeg"}, {4, "JPG"}})
    EXPECT_EQ(text_in(source->read(i)["image"]), text);
  EXPECT_EQ(options.spec().at("image"), FieldSpec::encoded());
  options.fields["image"] = "webp;png;jpg";
  expect_error(
      Exit::data,
      {"1 of 5", "'.webp or .png or .jpg'", "m.tar:jpeg", R"({ image = "webp;png;jpg;jpeg" })"},
      [&] { options.open(context); });
  options.fields["image"] = "png;jpeg;webp;jpg";
  EXPECT_EQ(text_in(options.open(context)->read(4)["image"]), "PNG")
      << "the order in the deck decides, not the archive's";
  // With one extension, the message has the correct line, and equal places give an equal
  // fingerprint.
  options.fields["image"] = "jpg";
  expect_error(Exit::data, {"3 of 5", "'.jpg'", R"({ image = "jpg;jpeg;png;webp" })"},
               [&] { options.open(context); });
  options.fields = {{"text", "txt"}};
  uint64_t one = options.open(context)->fingerprint();
  options.fields = {{"text", "txt;text"}};
  EXPECT_EQ(options.open(context)->fingerprint(), one);
}

TEST_F(WebdatasetTest, PathsWithStars) {
  three_shards();
  options.path = dir / "s-{0..2}.tar";
  // the indexes exist beside the shards now
  uint64_t braces = options.open(context)->fingerprint();
  test::write_file(dir / "s-1.tar.index.aBcDeF", "half an index");
  test::write_file(dir / ".s-9.tar", "not finished");
  for (std::string pattern : {"s-*", "*.tar", "s-[0-2].tar", "s-?.tar"}) {
    SCOPED_TRACE(pattern);
    options.path = dir / pattern;
    EXPECT_EQ(options.open(context)->fingerprint(), braces);
  }
  options.path = dir / "t*.tar";
  expect_error(Exit::data, {"no file matches", "t*.tar"}, [&] { options.open(context); });
}

TEST_F(WebdatasetTest, Problems) {
  shard(0, 0, 2);
  shard(1, 2, 4);
  expect_error(Exit::data, {"s-2.tar", "No such file"}, [&] { options.open(context); });
  options.path = dir / "s-0.tar";
  std::unique_ptr<Source> source = options.open(context);
  ASSERT_EQ(::truncate((dir / "s-0.tar").c_str(), 600), 0);
  expect_error(Exit::data, {"has changed"}, [&] { source->read(1); });
  test::write_file(dir / "s-0.tar", TarText().end());
  expect_error(Exit::data, {"holds no samples"}, [&] { options.open(context); });
  test::write_file(dir / "s-0.tar",
                   TarText().add("a.png", "").add("a.txt", "").add("a.cls", "cat").end());
  source = options.open(context);
  expect_error(Exit::data, {".cls", "cat", "whole number"}, [&] { source->read(0); });
}

TEST_F(WebdatasetTest, WarnsOfShardsWithoutSamples) {
  shard(0, 0, 2);
  shard(1, 2, 4);
  test::write_file(dir / "s-2.tar", std::string(20480, '\0'));
  for (const char* index : {"built", "read"}) {
    const int before = base::log::warnings_so_far();
    EXPECT_EQ(options.open(context)->size(), 4);
    EXPECT_EQ(base::log::warnings_so_far(), before + 1) << index;
  }
  test::write_file(dir / "s-2.tar", TarText().add("._hidden", "x").end());
  const int before = base::log::warnings_so_far();
  EXPECT_EQ(options.open(context)->size(), 4);
  EXPECT_EQ(base::log::warnings_so_far(), before + 1)
      << "the warning is about members without samples";
}

TEST_F(WebdatasetTest, NamesThatLeadOutAreRefused) {
  options.path = dir / "t.tar";
  options.fields = {{"text", "txt"}};
  for (auto [name, problem] :
       {std::pair<std::string, const char*>{"../../root/.bashrc.txt", "leads out"},
        {"a/../../b.txt", "leads out"},
        {"/etc/cron.d/x.txt", "absolute"},
        {"a\nerror: b.txt", "control"}}) {
    test::write_file(options.path, TarText().add("good.txt", "").add(name, "x").end());
    expect_error(Exit::data, {"t.tar' at byte 512", problem}, [&] { options.open(context); });
  }
  test::write_file(options.path, TarText().add("./a..b/..c.txt", "x").add("./a/d.txt", "y").end());
  EXPECT_EQ(options.open(context)->size(), 1);  // "..c.txt" is a hidden file, not a way out
}

TEST_F(WebdatasetTest, HugeMembersAreBadSamples) {
  options.path = dir / "t.tar";
  options.fields = {{"text", "txt"}};
  int64_t huge = kMostMemberBytes + 1, padded = (huge + 511) / 512 * 512;
  std::string head = TarText().add("a.txt", "small").text + TarText::header("b.txt", huge);
  test::write_file(options.path, head);
  ASSERT_EQ(::truncate(options.path.c_str(), int64_t(head.size()) + padded), 0);  // a hole
  std::ofstream(options.path, std::ios::app | std::ios::binary) << TarText().end();
  std::unique_ptr<Source> source = options.open(context);
  EXPECT_EQ(text_in(source->read(0)["text"]), "small");
  expect_error(Exit::data, {".txt has 268435457 bytes", "at most 268435456"},
               [&] { source->read(1); });
  test::write_file(options.path, TarText::header("b.bin", kMostMemberBytes));
  ASSERT_EQ(::truncate(options.path.c_str(), 512 + kMostMemberBytes), 0);
  std::ofstream(options.path, std::ios::app | std::ios::binary) << TarText().end();
  options.fields = {{"file", "bin"}};
  Sample largest = options.open(context)->read(0);
  EXPECT_EQ(int64_t(std::get<Bytes>(largest.at("file")).size()), kMostMemberBytes);
}

TEST_F(WebdatasetTest, MoreShardsThanOpenFiles) {
  if (!std::filesystem::exists("/proc/self/fd")) GTEST_SKIP() << "needs /proc";
  constexpr int kShards = 200;
  for (int s = 0; s < kShards; ++s)
    test::write_file(dir / fmt::format("m-{:03}.tar", s),
                     TarText().add("a.txt", std::to_string(s)).end());
  options.path = dir / "m-{000..199}.tar";
  options.fields = {{"text", "txt"}};
  std::unique_ptr<Source> source = options.open({.threads = 2, .write_index = false});
  for (int round = 0; round < 2; ++round)
    for (int64_t i = 0; i < kShards; ++i)
      EXPECT_EQ(text_in(source->read(i * 77 % kShards)["text"]), std::to_string(i * 77 % kShards));
  int64_t open = 0;
  for ([[maybe_unused]] auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++open;
  EXPECT_LT(open, 160);
}

}  // namespace
}  // namespace data
