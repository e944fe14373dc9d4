// SPDX-License-Identifier: Apache-2.0
// Tests sets of many shards: the list that a start reads instead of looking at every shard, what
// makes it stale, and how indexes are opened when their samples are due.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "data/sources/file.hpp"
#include "data/sources/tar_index.hpp"
#include "data/sources/webdataset.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;
using test::TarText;

constexpr int kManyShards = 320;  // a start with a list looks at every fifth one

struct ShardSetTest : testing::Test {
  test::TemporaryDirectory dir;
  OpenContext context{.threads = 2};
  WebdatasetOptions options;

  ShardSetTest() {
    options.path = dir / "s-{000..319}.tar";
    options.fields = {{"text", "txt"}, {"label", "cls"}};
    for (int s = 0; s < kManyShards; ++s) shard(s, 10 * s);
  }
  std::string path(int number) const { return dir / fmt::format("s-{:03}.tar", number); }
  // Shard s has s % 3 samples, with keys from `key` on.
  void shard(int number, int key, const std::string& more = "") {
    TarText tar;
    for (int i = key; i < key + number % 3; ++i)
      tar.add(fmt::format("{}.txt", i), fmt::format("text {}", i))
          .add(fmt::format("{}.cls", i), std::to_string(i % 7));
    test::write_file(path(number), tar.text + more + TarText().end());
  }
  static int64_t first(int number) { return number / 3 * 3 + (number % 3 == 2 ? 1 : 0); }
  std::vector<std::string> lists(const std::string& where) const {
    std::vector<std::string> out;
    for (auto& entry : std::filesystem::directory_iterator(where))
      if (entry.path().extension() == ".list") out.push_back(entry.path().string());
    return out;
  }
  std::string list() const {
    const std::vector<std::string> all = lists(dir.path());
    return all.size() == 1 ? all[0] : "";
  }
  void remove_all_but(const std::string& ending, int every) {
    for (int s = 0; s < kManyShards; ++s)
      if (every == 0 || s % every != 0) std::filesystem::remove(path(s) + ending);
  }
};

std::string text_of_sample(const Source& source, int64_t i) {
  return std::get<std::string>(source.read(i).at("text"));
}

TEST_F(ShardSetTest, StartWithAListLooksAtFewShards) {
  const uint64_t print = options.open(context)->fingerprint();
  ASSERT_NE(list(), "");
  struct stat info {};
  ASSERT_EQ(::stat(list().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
  EXPECT_LT(info.st_size, 60 * kManyShards);
  const std::string bytes = test::read_file(list());
  // A start that looked at the others would fail, and one that read an index would make it anew.
  remove_all_but("", 5);
  remove_all_but(".index", 0);
  std::unique_ptr<Source> source = options.open(context);
  EXPECT_EQ(source->size(), 319);
  EXPECT_EQ(source->fingerprint(), print);
  EXPECT_EQ(source->summary(), "320 tars");
  EXPECT_EQ(test::read_file(list()), bytes);
  EXPECT_FALSE(std::filesystem::exists(path(5) + ".index"));
  // The index of a shard is made when one of its samples is due.
  EXPECT_EQ(source->key(first(5) + 1), path(5) + ":51");
  EXPECT_TRUE(std::filesystem::exists(path(5) + ".index"));
  EXPECT_EQ(text_of_sample(*source, first(5)), "text 50");
  // A shard that is gone is an error when it is due. The next start looks at all shards.
  EXPECT_THROW(source->read(first(7)), Unreadable);
  expect_error(Exit::data, {"s-001.tar", "No such file"}, [&] { options.open(context); });
}

TEST_F(ShardSetTest, EverySampleWithAndWithoutAList) {
  std::unique_ptr<Source> made = options.open(context), read = options.open(context),
                          bounded = options.open({.index_bytes = 1});
  ASSERT_EQ(read->size(), 319);
  for (int64_t i = 0; i < 319; ++i) {
    EXPECT_EQ(made->key(i), read->key(i));
    EXPECT_EQ(text_of_sample(*made, i), text_of_sample(*read, i));
    EXPECT_EQ(text_of_sample(*made, i), text_of_sample(*bounded, i));
    EXPECT_EQ(*std::get<Array>(made->field(i, "label")).i32(),
              *std::get<Array>(read->field(i, "label")).i32());
  }
  EXPECT_EQ(read->key(318), path(319) + ":3190");
  EXPECT_EQ(made->earlier_fingerprint(), read->earlier_fingerprint());
}

// A bound of one byte leaves one of 320 indexes mapped.
TEST_F(ShardSetTest, IndexesStayMappedUnderABound) {
  if (!std::filesystem::exists("/proc/self/maps")) GTEST_SKIP() << "needs /proc";
  auto mapped = [&] {
    const std::string maps = test::read_file("/proc/self/maps");
    int count = 0;
    for (size_t at = 0; (at = maps.find(".tar.index", at)) != maps.npos; ++at) ++count;
    return count;
  };
  for (auto [bytes, want] : {std::pair<int64_t, int>{1, 1}, {1 << 20, 213}}) {
    std::unique_ptr<Source> source = options.open({.index_bytes = bytes});
    EXPECT_EQ(mapped(), 0) << "a start keeps none";
    for (int64_t i = 0; i < source->size(); ++i) source->key(i);
    EXPECT_EQ(mapped(), want);
  }
}

TEST_F(ShardSetTest, ChangedShardsAreNoticed) {
  options.open(context);
  // This shard is not looked at: it changes its key and nothing of its size.
  shard(7, 80);
  std::unique_ptr<Source> source = options.open(context);
  EXPECT_EQ(source->key(first(7)), path(7) + ":70") << "as it was listed";
  EXPECT_NE(list(), "");
  expect_error(Exit::data, {"s-007.tar", "has changed", "start again"},
               [&] { source->read(first(7)); });
  EXPECT_EQ(list(), "");
  source = options.open(context);
  EXPECT_EQ(text_of_sample(*source, first(7)), "text 80");
  EXPECT_NE(list(), "");
  // Another process has indexed the changed shard, so this set's index is gone.
  shard(7, 90);
  source = options.open(context);
  renew_tar_index(path(7), context);
  expect_error(Exit::data, {"s-007.tar", "has changed"}, [&] { source->key(first(7)); });
  EXPECT_EQ(list(), "");
  // This shard is looked at.
  options.open(context);
  shard(10, 600);
  EXPECT_EQ(text_of_sample(*options.open(context), first(10)), "text 600");
}

TEST_F(ShardSetTest, OtherListsAreNotTaken) {
  options.open(context);
  const std::string place = list(), bytes = test::read_file(place);
  remove_all_but("", 5);
  for (const std::string& bad :
       {std::string(), bytes.substr(0, bytes.size() / 2), bytes + "x", std::string("list")}) {
    test::write_file(place, bad);
    EXPECT_THROW(options.open(context), base::Error);
  }
  for (size_t at = 0; at < bytes.size(); at += 101) {
    std::string bad = bytes;
    bad[at] ^= 1;
    test::write_file(place, bad);
    EXPECT_THROW(options.open(context), base::Error) << at;
  }
  test::write_file(place, bytes);
  EXPECT_NO_THROW(options.open(context));
}

TEST_F(ShardSetTest, SetThatGrows) {
  options.path = dir / "s-*.tar";
  EXPECT_EQ(options.open(context)->size(), 319);
  EXPECT_EQ(options.open(context)->size(), 319);
  test::write_file(dir / "s-320.tar", TarText().add("x.txt", "new").add("x.cls", "1").end());
  std::unique_ptr<Source> source = options.open(context);
  EXPECT_EQ(source->size(), 320);
  EXPECT_EQ(text_of_sample(*source, 319), "new");
  EXPECT_EQ(lists(dir.path()).size(), 1u) << "one pattern has one list";
  // The list is not a shard.
  options.path = dir / "*";
  EXPECT_EQ(options.open(context)->size(), 320);
  EXPECT_EQ(options.open(context)->size(), 320);
}

// Three ranks list a third each. The list has what one rank finds, and looks at nothing else.
TEST_F(ShardSetTest, SharesOfRanks) {
  shard(100, 1000, TarText().add("x.json", "{}").text);  // another extension, in the first share
  OpenContext with_shares = context;
  ASSERT_EQ(options.lacks_list(context), options.path);
  for (int rank = 0; rank < 3; ++rank)
    with_shares.shares[options.path].push_back(options.list_share(context, rank, 3));
  EXPECT_EQ(list(), "") << "the first rank writes the list when it opens the set";
  OpenContext alone = context;
  alone.write_index = false;
  alone.substitutes = with_shares.substitutes = true;
  const uint64_t print = options.open(alone)->fingerprint();
  std::filesystem::rename(path(7), dir / "elsewhere");
  std::unique_ptr<Source> source = options.open(with_shares);
  EXPECT_EQ(source->fingerprint(), print);
  EXPECT_NE(list(), "");
  EXPECT_EQ(options.lacks_list(context), "");
  EXPECT_EQ(source->size(), 320);
  EXPECT_EQ(text_of_sample(*source, 319), "text 3190");
  std::filesystem::remove(list());
  // A share that does not come, is of other shards or of shards that have changed is not taken.
  for (const std::string& bad : {std::string(), with_shares.shares[options.path][1]}) {
    OpenContext other = with_shares;
    other.shares[options.path][2] = bad;
    expect_error(Exit::data, {"s-007.tar"}, [&] { options.open(other); });
  }
  shard(10, 600);
  expect_error(Exit::data, {"s-007.tar"}, [&] { options.open(with_shares); });
  // A rank that meets an error leaves it to the opening of the set.
  EXPECT_EQ(options.list_share(context, 0, 3), "");
  EXPECT_NE(options.list_share(context, 1, 3), "");
  EXPECT_EQ(options.lacks_list(context), options.path);
}

TEST_F(ShardSetTest, ListElsewhere) {
  options.open({.write_index = false});
  EXPECT_EQ(list(), "");
  EXPECT_FALSE(std::filesystem::exists(path(0) + ".index"));
  const OpenContext elsewhere{.index_dir = dir / "indexes", .run_index_dir = dir / "run"};
  options.open(elsewhere);
  EXPECT_EQ(list(), "");
  EXPECT_EQ(lists(dir / "indexes").size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
  test::write_file(dir / "blocked", "");
  const OpenContext blocked{.index_dir = dir / "blocked", .run_index_dir = dir / "run/index"};
  options.open(blocked);
  EXPECT_EQ(lists(dir / "run/index").size(), 1u);
  remove_all_but("", 5);
  EXPECT_EQ(options.open(elsewhere)->size(), 319);
  EXPECT_EQ(options.open(blocked)->size(), 319);
}

TEST_F(ShardSetTest, DamagedIndexIsMadeAgain) {
  options.open(context);
  std::unique_ptr<Source> source = options.open(context);
  std::string bytes = test::read_file(path(5) + ".index");
  std::string bad = bytes;
  bad.back() ^= 1;
  test::write_file(path(5) + ".index", bad);
  EXPECT_EQ(text_of_sample(*source, first(5) + 1), "text 51");
  EXPECT_EQ(test::read_file(path(5) + ".index"), bytes);
}

TEST_F(ShardSetTest, MissingMembersAreCountedWithAndWithoutAList) {
  shard(100, 1000, TarText().add("x.txt", "").add("y.txt", "").text);
  shard(200, 2000, TarText().add("z.txt", "").text);
  for (const char* round : {"made", "read"})
    expect_error(
        Exit::data,
        {"field 'label': 3 of 322 samples have no member '.cls'", "s-100.tar:x", ".cls .txt"}, [&] {
          options.open(context);
          ADD_FAILURE() << round;
        });
  OpenContext replacing = context;
  replacing.substitutes = true;
  EXPECT_EQ(options.open(replacing)->size(), 322);
  EXPECT_NE(list(), "");
}

// Checkpoints of earlier versions hold this number.
TEST_F(ShardSetTest, EarlierFingerprint) {
  Fingerprint want;
  for (int s = 0; s < kManyShards; ++s) {
    const File file(path(s));
    const TarIndex index = build_tar_index(file);
    want.add(file.size());
    for (const std::string& key : index.keys) want.add(key);
    // The members of a sample are .txt, .cls; the fields are label, text.
    for (size_t i = 0; i < index.members.size(); i += 2)
      for (const TarIndex::Member& m : {index.members[i + 1], index.members[i]})
        want.add(m.offset).add(m.size);
  }
  EXPECT_EQ(options.open(context)->earlier_fingerprint(), want.value());
  EXPECT_NE(options.open(context)->fingerprint(), want.value());
}

}  // namespace
}  // namespace data
