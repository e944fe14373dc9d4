// SPDX-License-Identifier: Apache-2.0
// Tests files of a run on a disk that is full for a while: nothing throws, and nothing is lost.
#include "io/waiting.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

namespace {

bool g_full = false;

class Waiting : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "trainer_waiting_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    g_full = false;
    io::set_call_hook([](int64_t, const char* call, const std::string& path) {
      if (g_full && (call == std::string("write") || call == std::string("open")))
        io::fail_call(call, path, ENOSPC);
    });
  }
  void TearDown() override {
    io::set_call_hook(nullptr);
    io::forget_waiting();
    std::filesystem::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

TEST_F(Waiting, LinesAreWrittenWhenThereIsRoom) {
  io::WaitingLines lines(path("logs/a.tsv"));
  EXPECT_FALSE(std::filesystem::exists(path("logs"))) << "it is made with the first line";
  g_full = true;  // already when the file is to be made
  lines.append("1\n");
  EXPECT_TRUE(lines.waits());
  EXPECT_EQ(io::write_waiting(), 1u);
  EXPECT_NE(io::waiting_problem().find("No space left"), std::string::npos);
  g_full = false;
  EXPECT_EQ(io::write_waiting(), 0u);
  lines.append("2\n");
  g_full = true;
  lines.append("3\n");
  lines.append("4\n");
  g_full = false;
  EXPECT_EQ(io::read_file(lines.path()), "1\n2\n");
  lines.append("5\n");
  EXPECT_EQ(io::read_file(lines.path()), "1\n2\n3\n4\n5\n");
  EXPECT_EQ(lines.length(), 10);
}

// The disk accepts a part of a line. This part must not stay in the file.
TEST_F(Waiting, LinesAreNeverCut) {
  std::signal(SIGXFSZ, SIG_IGN);
  io::WaitingLines lines(path("a.tsv"));
  lines.append("one\n");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 6;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  lines.append("two\n");
  EXPECT_EQ(io::read_file(lines.path()), "one\n");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(lines.retry());
  EXPECT_EQ(io::read_file(lines.path()), "one\ntwo\n");
}

TEST_F(Waiting, OnlySoManyBytesWait) {
  io::WaitingLines lines(path("a.tsv"), 8);
  g_full = true;
  for (const char* line : {"one\n", "two\n", "lost\n"}) lines.append(line);
  g_full = false;
  lines.append("more\n");
  EXPECT_EQ(io::read_file(lines.path()), "one\ntwo\nmore\n");
}

TEST_F(Waiting, ARemovedFileBeginsAgain) {
  io::WaitingLines lines(path("logs/a.tsv"));
  EXPECT_FALSE(lines.keep());
  lines.append("1\n");
  EXPECT_FALSE(lines.keep());
  std::filesystem::remove_all(path("logs"));
  EXPECT_TRUE(lines.keep());
  lines.append("2\n");
  EXPECT_EQ(io::read_file(lines.path()), "2\n");
}

TEST_F(Waiting, WholeFilesAreWrittenWhenThereIsRoom) {
  g_full = true;
  io::write_or_wait(path("eval/a.json"), "old");
  io::write_or_wait(path("eval/a.json"), "new");
  io::write_or_wait(path("eval/b.json"), "b");
  EXPECT_EQ(io::write_waiting(), 2u);
  g_full = false;
  EXPECT_EQ(io::write_waiting(), 0u);
  EXPECT_EQ(io::read_file(path("eval/a.json")), "new");
  EXPECT_EQ(io::read_file(path("eval/b.json")), "b");
  io::write_or_wait(path("eval/c.json"), "c");
  EXPECT_EQ(io::read_file(path("eval/c.json")), "c");
  g_full = true;
  io::write_or_wait(path("eval/d.json"), "d");
  io::forget_waiting();
  g_full = false;
  EXPECT_EQ(io::write_waiting(), 0u);
  EXPECT_FALSE(std::filesystem::exists(path("eval/d.json")));
}

}  // namespace
