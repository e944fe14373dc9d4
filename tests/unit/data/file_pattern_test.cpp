// SPDX-License-Identifier: Apache-2.0
// Tests names of data files with braces and stars.
#include "data/sources/file_pattern.hpp"

#include <gtest/gtest.h>

#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;
using List = std::vector<std::string>;

struct FilePattern : testing::Test {
  test::TemporaryDirectory dir;
  FilePattern() {
    for (std::string name : {"a", "b"}) std::filesystem::create_directories(dir / name);
    for (std::string name : {"a/10.tar", "a/9.tar", "b/1.tar", "b/x.tar.index", "a/9.tar.index",
                             ".hidden.tar", "[1].tar", "1.tar"})
      test::write_file(dir / name, "");
  }
  List of(const std::string& pattern) {
    List out = files_matching(dir / pattern);
    for (std::string& name : out) name = name.substr(dir.path().size() + 1);
    return out;
  }
};

TEST_F(FilePattern, SortedByName) {
  EXPECT_EQ(of("a/*"), (List{"a/10.tar", "a/9.tar"})) << "an index of a shard is no data file";
  EXPECT_EQ(of("b/*"), (List{"b/1.tar", "b/x.tar.index"}))
      << "an index without a shard is an ordinary file";
  EXPECT_EQ(of("*/?.tar"), (List{"a/9.tar", "b/1.tar"}));
  EXPECT_EQ(of("a/[!9]*.tar"), List{"a/10.tar"});
  EXPECT_EQ(of("*.tar"), (List{"1.tar", "[1].tar"}));
  // Braces are expanded first, and keep their order.
  EXPECT_EQ(of("{b,a}/*.tar"), (List{"b/1.tar", "a/10.tar", "a/9.tar"}));
  EXPECT_EQ(of("{none,a/9*}"), (List{"none", "a/9.tar"})) << "names without a star need not exist";
}

TEST_F(FilePattern, AFileOfThatNameGoesFirst) { EXPECT_EQ(of("[1].tar"), List{"[1].tar"}); }

TEST_F(FilePattern, Problems) {
  expect_error(Exit::data, {"no file matches", "c/*.tar'"}, [&] { of("c/*.tar"); });
  expect_error(Exit::data, {"no file matches", "b/9*'", "(of '", "{a,b}/9*"},
               [&] { of("{a,b}/9*"); });
  expect_error(Exit::data, {"b/1.tar' is matched twice", "{?,b}/*"}, [&] { of("{?,b}/*"); });
  expect_error(Exit::data, {"a' is a folder", "a/*'"}, [&] { of("a"); });
  expect_error(Exit::config, {"braces"}, [&] { of("*{"); });
  std::filesystem::create_symlink(dir / "loop", dir / "loop");  // even root cannot list it
  expect_error(Exit::data, {"loop' cannot be listed: Too many levels"}, [&] { of("loop/*.tar"); });
}

}  // namespace
}  // namespace data
