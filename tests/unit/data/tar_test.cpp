// SPDX-License-Identifier: Apache-2.0
// Tests tar headers: formats, long names, huge sizes, and files cut or damaged everywhere.
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/sources/tar_index.hpp"
#include "data/sources/tar_reader.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;
using test::TarText;

struct Tar : testing::Test {
  test::TemporaryDirectory dir;
  std::string path = dir / "x.tar";

  std::vector<TarMember> walk(const std::string& bytes) {
    test::write_file(path, bytes);
    return walk_file();
  }
  std::vector<TarMember> walk_file() {
    File file(path);
    TarReader reader(file);
    std::vector<TarMember> out;
    for (TarMember m; reader.next(m);) out.push_back(m);
    return out;
  }
  std::string content(const TarMember& m) {
    std::string out(size_t(m.size), '\0');
    File(path).read(m.offset, out.data(), out.size());
    return out;
  }
};

TEST_F(Tar, Members) {
  TarText tar;
  tar.add("a.txt", "hello")
      .add("sub/", "", '5')
      .add("sub/b.txt", "")
      .add("sub/c.bin", std::string(1500, 'c'));
  std::vector<TarMember> m = walk(tar.end());
  ASSERT_EQ(m.size(), 3u);
  EXPECT_EQ(m[0].name, "a.txt");
  EXPECT_EQ(m[0].offset, 512);
  EXPECT_EQ(content(m[0]), "hello");
  EXPECT_EQ(m[1].name, "sub/b.txt");
  EXPECT_EQ(m[1].size, 0);
  EXPECT_EQ(content(m[2]), std::string(1500, 'c'));
}

TEST_F(Tar, LongNames) {
  std::string pax_name = std::string(200, 'p') + "/" + std::string(90, 'q') + ".txt",
              gnu_name = std::string(250, 'g') + ".txt";
  TarText tar;
  tar.add("file.txt", "1", '0', "a/long/prefix");
  tar.pax({{"comment", "with = signs"}, {"path", pax_name}}).add("short.txt", "22");
  tar.add("././@LongLink", gnu_name + std::string(1, '\0'), 'L').add("cut.txt", "333");
  tar.add("pax_global_header", "20 comment=whatever\n", 'g').add("last.txt", "4444");
  std::vector<TarMember> m = walk(tar.end());
  ASSERT_EQ(m.size(), 4u);
  EXPECT_EQ(m[0].name, "a/long/prefix/file.txt");
  EXPECT_EQ(m[1].name, pax_name);
  EXPECT_EQ(m[2].name, gnu_name);
  EXPECT_EQ(m[3].name, "last.txt");
  EXPECT_EQ(content(m[1]), "22");
  EXPECT_EQ(content(m[2]), "333");
}

// Reads the formats as another program writes them.
TEST_F(Tar, FormatsOfLibarchive) {
  for (int format :
       {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FORMAT_TAR_PAX_INTERCHANGE, ARCHIVE_FORMAT_TAR_GNUTAR}) {
    // length of a name's last part; ustar has no more room
    size_t longest = format == ARCHIVE_FORMAT_TAR_USTAR ? 90 : 190;
    std::vector<std::string> names{
        "plain.txt", std::string(120, 'd') + "/" + std::string(longest, 'n') + ".txt", "last.txt"};
    archive* a = archive_write_new();
    archive_write_set_format(a, format);
    ASSERT_EQ(archive_write_open_filename(a, path.c_str()), ARCHIVE_OK);
    for (const std::string& name : names) {
      archive_entry* e = archive_entry_new();
      archive_entry_set_pathname(e, name.c_str());
      archive_entry_set_size(e, int64_t(name.size()));
      archive_entry_set_filetype(e, AE_IFREG);
      archive_entry_set_perm(e, 0644);
      archive_entry_set_mtime(e, 1'700'000'000, 123'456'789);  // fractions make pax write a header
      EXPECT_EQ(archive_write_header(a, e), ARCHIVE_OK);
      EXPECT_EQ(archive_write_data(a, name.data(), name.size()), la_ssize_t(name.size()));
      archive_entry_free(e);
    }
    EXPECT_EQ(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
    std::vector<TarMember> m = walk_file();
    ASSERT_EQ(m.size(), names.size()) << format;
    for (size_t i = 0; i < m.size(); ++i) {
      EXPECT_EQ(m[i].name, names[i]);
      EXPECT_EQ(content(m[i]), names[i]);
    }
  }
}

TEST_F(Tar, SizesBeyondEightGiB) {
  int64_t huge = (int64_t{9} << 30) + 5, padded = (huge + 511) / 512 * 512;
  for (bool pax : {false, true}) {
    TarText tar;
    if (pax)
      tar.pax({{"size", std::to_string(huge)}}).text += TarText::header("big.bin", 0);
    else
      tar.text += TarText::header("big.bin", huge);
    int64_t body = int64_t(tar.text.size());
    test::write_file(path, tar.text);
    ASSERT_EQ(::truncate(path.c_str(), body + padded), 0);  // a hole
    std::ofstream(path, std::ios::app | std::ios::binary)
        << TarText().add("after.txt", "here").end();
    std::vector<TarMember> m = walk_file();
    ASSERT_EQ(m.size(), 2u);
    EXPECT_EQ(m[0].size, huge);
    EXPECT_EQ(m[0].offset, body);
    EXPECT_EQ(content(m[1]), "here");
  }
}

// Cut after any byte, an archive gives an error and never fewer members.
TEST_F(Tar, CutAnywhere) {
  TarText tar;
  tar.add("a.txt", "hello")
      .pax({{"path", "long.txt"}})
      .add("b.txt", std::string(700, 'b'))
      .add("c.txt", "");
  std::string whole = tar.end();
  ASSERT_EQ(walk(whole).size(), 3u);
  for (size_t size = 0; size < whole.size(); size += size < 512 ? 37 : 128) {
    SCOPED_TRACE(size);
    expect_error(Exit::data, {path}, [&] { walk(whole.substr(0, size)); });
  }
  // A cut inside the bytes of b.txt is reported with file, member and place.
  expect_error(Exit::data, {path, "long.txt", "was cut", "byte 1024", "after member 'a.txt'"},
               [&] { walk(whole.substr(0, 2700)); });
  expect_error(Exit::data, {"without the tar end mark"}, [&] { walk(tar.text); });
  expect_error(Exit::data, {"is empty"}, [&] { walk(""); });
}

TEST_F(Tar, Damaged) {
  TarText tar;
  tar.add("a.txt", "hello").add("b.txt", "world");
  std::string bad = tar.end();
  bad[1024 + 3] ^= 1;
  expect_error(Exit::data, {"wrong checksum", "byte 1024", "after member 'a.txt'"},
               [&] { walk(bad); });
  expect_error(Exit::data, {"not a tar file"}, [&] { walk(std::string(2048, 'x')); });
  std::string size = TarText::header("a.txt", 5);
  size[130] = '9';
  expect_error(Exit::data, {"no valid size"},
               [&] { walk(TarText::sealed(size) + std::string(1536, '\0')); });
  std::string negative = TarText::header("a.txt", 5);
  negative[124] = char(0xff);
  expect_error(Exit::data, {"no valid size"},
               [&] { walk(TarText::sealed(negative) + std::string(1536, '\0')); });
  std::string enormous = TarText::header("a.txt", INT64_MAX);
  expect_error(Exit::data, {"a.txt", "from byte 512 on"},
               [&] { walk(enormous + std::string(1536, '\0')); });
  expect_error(Exit::data, {"single zero block"},
               [&] { walk(tar.text + std::string(512, '\0') + tar.end()); });
  expect_error(Exit::data, {"pack joined tars again"}, [&] { walk(tar.end() + tar.end()); });
  std::string records(size_t{256} << 10, '\0');  // tar -b 512
  expect_error(Exit::data, {"pack joined tars again"},
               [&] { walk(tar.end() + records + tar.end() + records); });
  expect_error(Exit::data, {"follow the tar end mark", "at most 16777216"},
               [&] { walk(tar.end() + std::string(size_t{17} << 20, '\0')); });
  expect_error(Exit::data, {"broken pax header"},
               [&] { walk(TarText().add("x", "7 path=abcdefg\n", 'x').add("a.txt", "").end()); });
  expect_error(Exit::data, {"broken pax header"},
               [&] { walk(TarText().add("x", "99999999999999999999 a=b\n", 'x').end()); });
  expect_error(Exit::data, {"broken size"}, [&] {
    walk(TarText().pax({{"size", "-5"}}).add("a.txt", "").end());
  });
  expect_error(Exit::data, {"ends after an extended header"}, [&] {
    walk(TarText().pax({{"path", "a"}}).end());
  });
  expect_error(Exit::data, {"at most"},
               [&] { walk(TarText().add("x", std::string((1 << 20) + 1, 'x'), 'L').end()); });
}

TEST_F(Tar, Refused) {
  expect_error(Exit::data, {"gzip", "unpack"},
               [&] { walk("\x1f\x8b\x08" + std::string(600, 'x')); });
  expect_error(Exit::data, {"zstd"}, [&] { walk("\x28\xb5\x2f\xfd" + std::string(600, 'x')); });
  // GNU tar makes hard links of what --dereference finds twice.
  for (char type : {'1', '2'})
    expect_error(Exit::data, {"link", "l.txt", "tar --dereference --hard-dereference"},
                 [&] { walk(TarText().add("l.txt", "", type).end()); });
  expect_error(Exit::data, {"'pipe' is not a plain file (type '6')", "without it"},
               [&] { walk(TarText().add("pipe", "", '6').end()); });
  expect_error(Exit::data, {"'x' is a sparse member", "without --sparse"},
               [&] { walk(TarText().add("x", "", 'S').end()); });
  expect_error(Exit::data, {"'x' begins in another volume", "--multi-volume"},
               [&] { walk(TarText().add("x", "", 'M').end()); });
  expect_error(Exit::data, {"pointer of Git LFS", "git lfs pull"},
               [&] { walk("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"); });
  // The label of an archive, and the folders of an incremental one with their lists of files.
  const std::vector<TarMember> rest = walk(TarText()
                                               .add("label", "", 'V')
                                               .add("d/", std::string("Yx\0\0", 4), 'D')
                                               .add("d/x", "x")
                                               .end());
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(content(rest[0]), "x");
  // Hidden members are left out, links and devices as well.
  for (char type : {'1', '2', '3', '6'}) {
    const std::vector<TarMember> m =
        walk(TarText().add(".latest", "", type).add("d/.x/l", "", type).add("a.txt", "a").end());
    ASSERT_EQ(m.size(), 1u) << type;
    EXPECT_EQ(content(m[0]), "a");
    expect_error(Exit::data, {"'../.x'"}, [&] { walk(TarText().add("../.x", "", type).end()); });
  }
  expect_error(Exit::data, {"sparse"}, [&] {
    walk(TarText().pax({{"GNU.sparse.major", "1"}}).add("a", "").end());
  });
  expect_error(Exit::data, {"no/such.tar", "No such file"}, [&] { File file("no/such.tar"); });
  expect_error(Exit::data, {"not a regular file"}, [&] { File file(dir.path()); });
  const std::string pipe = dir.path() + "/pipe";  // a pipe without a writer
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error(Exit::data, {"not a regular file"}, [&] { File file(pipe); });
}

TEST_F(Tar, NamesOfMembers) {
  auto parts = [](const char* name) {
    auto p = split_member_name(name);
    return p ? std::string(p->first) + "|" + p->second : "-";
  };
  EXPECT_EQ(parts("a.png"), "a|png");
  EXPECT_EQ(parts("./x.y/a.seg.png"), "x.y/a|seg.png");
  EXPECT_EQ(parts("././/a.png"), "a|png");
  EXPECT_EQ(parts("./"), "-");
  EXPECT_EQ(parts("a"), "-");
  EXPECT_EQ(parts("d/.hidden.png"), "-");
  EXPECT_EQ(parts("d/@eaDir/a.png/thumb.png"), "-");
  EXPECT_EQ(parts("._a.png"), "-");
  EXPECT_EQ(parts("a."), "-");
  EXPECT_EQ(parts("X/A.Seg.PNG"), "X/A|seg.png");
  EXPECT_EQ(parts(".ipynb_checkpoints/a.png"), "-");
  EXPECT_EQ(parts("./d/.git/e/a.png"), "-");
  EXPECT_EQ(parts("d/./a.png"), "d/./a|png");
}

TEST_F(Tar, Index) {
  TarText tar;
  tar.add("s/0.png", "P0")
      .add("s/0.txt", "T0")
      .add("README", "x")
      .add("s/1.txt", "T1")
      .add("s/1.png", "P1");
  test::write_file(path, tar.end());
  File file(path);
  TarIndex index = build_tar_index(file);
  EXPECT_EQ(index.keys, (std::vector<std::string>{"s/0", "s/1"}));
  EXPECT_EQ(index.extensions, (std::vector<std::string>{"png", "txt"}));
  ASSERT_EQ(index.members.size(), 4u);
  EXPECT_EQ(index.members[2].extension, 1u);
  EXPECT_EQ(index.members[2].sample, 1u);
}

std::shared_ptr<const TarIndexFile> opened(const std::string& bytes) {
  return TarIndexFile::open(std::make_unique<IndexBytes>(bytes));
}

// Returns the text of all that a reader finds, or "damaged".
std::string all_found(const std::string& bytes) {
  const auto index = opened(bytes);
  if (!index) return "damaged";
  std::string out;
  for (int64_t i = 0; i < index->head().samples; ++i) {
    const auto sample = index->find(i);
    if (!sample) return "damaged";
    out += std::string(sample->key) + ":";
    for (const TarIndexFile::Member& m : sample->members)
      out += fmt::format(" {} {}+{}", index->head().extensions.at(m.extension), m.offset, m.size);
    out += "\n";
  }
  return out;
}

TEST_F(Tar, IndexFile) {
  TarIndex index{.keys = {}, .extensions = {"png", "txt", "json"}, .members = {}};
  std::string want;
  int64_t at = 512;
  for (uint32_t i = 0; i < 200; ++i) {
    index.keys.push_back(fmt::format("key{}", i * i));
    want += index.keys.back() + ":";
    // Most samples have two members, some three; one has none.
    const uint32_t members = i == 70 ? 0 : i % 50 == 49 ? 3 : 2;
    for (uint32_t m = 0; m < members; ++m) {
      const int64_t size = i == 100 ? int64_t{1} << 40 : i;
      index.members.push_back({at, size, i, m});
      want += fmt::format(" {} {}+{}", index.extensions[m], at, size);
      at += (size + 511) / 512 * 512 + (i == 120 ? 4096 : 512);
    }
    want += "\n";
  }
  const FileState state{at, 1, 2, 3};
  const std::string bytes = encode_tar_index(index, state);
  EXPECT_EQ(all_found(bytes), want);
  const TarIndexHead head = opened(bytes)->head();
  EXPECT_EQ(head.state, state);
  EXPECT_EQ(head.samples, 200);
  ASSERT_EQ(head.kinds.size(), 3u);  // in the order of their extensions
  EXPECT_EQ(head.kinds[0].samples, 1);
  EXPECT_EQ(head.kinds[0].first, 70);
  EXPECT_EQ(head.kinds[1].samples, 195);
  EXPECT_EQ(head.kinds[2].extensions, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(head.kinds[2].first, 49);
  // The digest is of the content alone.
  EXPECT_EQ(opened(encode_tar_index(index, {at, 4, 5, 6}))->head().digest, head.digest);
  for (size_t cut = 0; cut < bytes.size(); cut += 7)
    EXPECT_EQ(all_found(bytes.substr(0, cut)), "damaged") << cut;
  EXPECT_EQ(all_found(bytes + "x"), "damaged");
  for (size_t i = 0; i < bytes.size(); i += 5) {
    std::string bad = bytes;
    bad[i] ^= 4;
    EXPECT_EQ(all_found(bad), "damaged") << i;
  }
  TarIndex other = index;
  other.keys[150] = "another";
  EXPECT_NE(opened(encode_tar_index(other, state))->head().digest, head.digest);
  other = index;
  other.members.back().size ^= 1;
  EXPECT_NE(opened(encode_tar_index(other, state))->head().digest, head.digest);
}

bool is_of(const std::string& bytes, const std::string& shard) {
  const auto index = opened(bytes);
  return index && index->is_of(File(shard));
}

// Another shard may replace one of the same name. tar fills files up to 10 KiB, so the length often
// stays.
TEST_F(Tar, IndexOfAnotherShardIsStale) {
  auto put = [&](const std::string& key, const std::string& more, int64_t seconds,
                 int64_t nanoseconds) {
    test::write_file(path, TarText().add(key + ".png", "P0").add(key + ".txt", "T0").end() + more);
    timespec times[2] = {{seconds, nanoseconds}, {seconds, nanoseconds}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  put("0", "", 1'600'000'000, 5);
  const std::shared_ptr<const TarIndexFile> index = open_tar_index(path, {}).index;
  const std::string bytes = test::read_file(path + ".index");
  ASSERT_TRUE(is_of(bytes, path));
  put("1", "", 1'600'000'001, 5);  // of equal length, later
  EXPECT_FALSE(is_of(bytes, path));
  put("1", "", 1'500'000'000, 5);  // of equal length, earlier: copied with its time
  EXPECT_FALSE(is_of(bytes, path));
  put("1", "", 1'600'000'000, 6);  // of equal length, within the same second
  EXPECT_FALSE(is_of(bytes, path));
  put("1", std::string(512, '\0'), 1'600'000'000, 5);  // of equal time, longer
  EXPECT_FALSE(is_of(bytes, path));
  const std::shared_ptr<const TarIndexFile> fresh = open_tar_index(path, {}).index;
  EXPECT_EQ(fresh->find(0)->key, "1");
  EXPECT_EQ(index->find(0)->key, "0");
  EXPECT_TRUE(is_of(test::read_file(path + ".index"), path));
}

// In system images all files have the same time. Inode and change time distinguish them.
TEST_F(Tar, IndexOfAnotherShardOfEqualSizeAndTimeIsStale) {
  auto put = [&](const std::string& at, const std::string& text) {
    test::write_file(at, TarText().add("a.txt", text).end());
    timespec times[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, at.c_str(), times, 0), 0);
  };
  put(path, "one");
  EXPECT_EQ(open_tar_index(path, {}).index->find(0)->members.at(0).size, 3);
  std::string bytes = test::read_file(path + ".index");
  EXPECT_TRUE(is_of(bytes, path));
  put(path + ".new", "three");
  std::filesystem::rename(path + ".new", path);
  EXPECT_FALSE(is_of(bytes, path));
  EXPECT_EQ(open_tar_index(path, {}).index->find(0)->members.at(0).size, 5);
  bytes = test::read_file(path + ".index");
  EXPECT_TRUE(is_of(bytes, path));
  const int64_t before = File(path).changed_ns();
  while (File(path).changed_ns() == before) put(path, "seven");  // in place; clocks are coarse
  EXPECT_FALSE(is_of(bytes, path));
}

TEST_F(Tar, IndexObeysTheUmask) {
  test::write_file(path, TarText().add("a.txt", "x").end());
  for (mode_t mask : {mode_t{077}, mode_t{027}, mode_t{022}}) {
    std::filesystem::remove(path + ".index");
    const mode_t before = ::umask(mask);
    open_tar_index(path, {});
    ::umask(before);
    struct stat info {};
    ASSERT_EQ(::stat((path + ".index").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
  }
  for (auto& entry : std::filesystem::directory_iterator(dir.path()))
    EXPECT_EQ(entry.path().filename().native().find("index."), std::string::npos) << entry.path();
}

TEST_F(Tar, DuplicateMember) {
  test::write_file(path, TarText().add("0.txt", "a").add("1.txt", "b").add("0.txt", "c").end());
  File file(path);
  expect_error(Exit::data, {"0.txt", "twice", "bytes 0 and 2048"}, [&] { build_tar_index(file); });
  test::write_file(path, TarText().add("0.txt", "a").add("0.TXT", "b").end());
  expect_error(Exit::data, {"0.TXT", "twice", "capitals"}, [&] { build_tar_index(File(path)); });
}

}  // namespace
}  // namespace data
