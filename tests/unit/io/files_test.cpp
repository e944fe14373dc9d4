// SPDX-License-Identifier: Apache-2.0
#include "io/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/flight_page.hpp"
#include "base/thread_scope.hpp"
#include "io/sync_times.hpp"

namespace {

using io::File;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "trainer_files_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override {
    io::set_call_hook(nullptr);
    std::string command = "rm -rf '" + directory_ + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::string directory_;
};

std::string message_of(const std::function<void()>& work, int number) {
  try {
    work();
  } catch (const io::Failure& e) {
    EXPECT_EQ(e.number(), number) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST_F(Files, writes_and_reads_at_offsets) {
  File file(path("a"), File::Mode::create);
  file.write_at("world", 5, 6);
  file.write_at("hello ", 6, 0);
  EXPECT_EQ(file.size(), 11);
  std::string text(5, ' ');
  file.read_at(text.data(), 5, 6);
  EXPECT_EQ(text, "world");
  file.truncate(5);
  file.sync();
  file.close();
  EXPECT_EQ(io::read_file(path("a")), "hello");
  File more(path("a"), File::Mode::append);
  more.append("!");
  EXPECT_EQ(io::read_file(path("a")), "hello!");
}

TEST_F(Files, an_end_of_file_inside_a_read_is_an_error) {
  io::write_file_atomically(path("a"), "12345");
  File file(path("a"), File::Mode::read);
  char buffer[8];
  EXPECT_NE(message_of([&] { file.read_at(buffer, 8, 2); }, 0).find("ends at byte 5, 5 more"),
            std::string::npos);
}

TEST_F(Files, errors_name_call_path_and_reason) {
  std::string text = message_of([&] { File(path("none"), File::Mode::read); }, ENOENT);
  EXPECT_EQ(text, path("none") + ": cannot open: No such file or directory");
  message_of([&] { io::read_file(directory_); }, EISDIR);
  message_of([&] { io::rename_file(path("x"), path("y")); }, ENOENT);
  message_of([&] { io::free_bytes(path("none")); }, ENOENT);
  message_of([&] { io::sync_directory(path("none")); }, ENOENT);
}

TEST_F(Files, a_long_sync_shows_progress) {
  base::register_main_thread();
  auto spans = [] { return base::flight_page().threads[0].begun.load(); };
  File file(path("large"), File::Mode::create);
  file.truncate(int64_t{1} << 30);  // a hole, which needs no room
  const uint64_t before = spans();
  file.sync();
  EXPECT_EQ(spans(), before + 4);
  file.truncate(1000);
  file.sync();
  EXPECT_EQ(spans(), before + 4) << "a small file is synced at once";
}

TEST_F(Files, syncs_are_timed_by_thread) {
  io::take_longest_sync_s();
  const double before = io::synced_s();
  base::Stopwatch watch;
  io::write_file_atomically(path("a"), "12345");
  const double here = io::synced_s() - before, longest = io::take_longest_sync_s();
  EXPECT_GT(longest, 0);
  EXPECT_LT(longest, here) << "a sync of the file and one of its folder";
  EXPECT_LE(here, watch.seconds());
  std::jthread([&] { io::write_file_atomically(path("b"), "12345"); }).join();
  EXPECT_EQ(io::synced_s() - before, here) << "another thread's time is its own";
  EXPECT_GT(io::take_longest_sync_s(), 0);
  EXPECT_EQ(io::take_longest_sync_s(), 0);
}

TEST_F(Files, atomic_write_replaces_whole_files_and_leaves_no_temporary) {
  io::write_file_atomically(path("a"), "old");
  io::write_file_atomically(path("a"), std::string(100000, 'n'));
  EXPECT_EQ(io::read_file(path("a")), std::string(100000, 'n'));
  EXPECT_EQ(io::list_directory(directory_), std::vector<std::string>{"a"});
}

// If any call fails, the old content stays and no temporary file remains.
int g_fail_at = 0;
TEST_F(Files, atomic_write_that_fails_anywhere_leaves_the_old_file) {
  io::write_file_atomically(path("a"), "old");
  int failures = 0;
  for (int at = 0;; ++at) {
    g_fail_at = at;
    io::set_call_hook([](int64_t, const char* call, const std::string& file) {
      if (g_fail_at-- == 0) io::fail_call(call, file, ENOSPC);
    });
    bool failed = false;
    try {
      io::write_file_atomically(path("a"), "new");
    } catch (const io::Failure&) {
      failed = true;
    }
    io::set_call_hook(nullptr);
    if (!failed) break;
    ++failures;
    std::string content = io::read_file(path("a"));
    // Only the sync of the directory comes after the rename.
    EXPECT_TRUE(content == "old" || (content == "new" && at >= 5)) << at << " " << content;
    EXPECT_EQ(io::list_directory(directory_), std::vector<std::string>{"a"});
    io::write_file_atomically(path("a"), "old");
  }
  EXPECT_EQ(failures, 7);  // open, write, fsync, close, rename; open and fsync of the directory
}

std::vector<std::string> g_made;
TEST_F(Files, a_name_is_given_to_what_is_on_disk) {
  auto calls_of = [](const std::function<void()>& work) {
    g_made.clear();
    io::set_call_hook(
        [](int64_t, const char* call, const std::string&) { g_made.push_back(call); });
    work();
    io::set_call_hook(nullptr);
    return g_made;
  };
  using Calls = std::vector<std::string>;
  EXPECT_EQ(calls_of([&] { io::write_file_atomically(path("a"), "new"); }),
            (Calls{"open", "write", "fsync", "close", "rename", "open", "fsync"}));
  EXPECT_EQ(calls_of([&] { io::copy_file_atomically(path("a"), path("b")); }),
            (Calls{"open", "fstat", "open", "read", "write", "fstat", "fsync", "futimens", "close",
                   "rename"}));
}

TEST_F(Files, a_file_knows_whether_it_is_in_place) {
  File file(path("a"), File::Mode::append);
  file.append("text");
  EXPECT_TRUE(file.in_place());
  EXPECT_EQ(io::id_of(path("none")), std::nullopt);
  EXPECT_EQ(io::id_of(path("a/none")), std::nullopt);
  io::rename_file(path("a"), path("b"));
  EXPECT_FALSE(file.in_place());
  EXPECT_EQ(file.size(), 4);
  io::write_file_atomically(path("a"), "text");
  EXPECT_FALSE(file.in_place());
  io::rename_file(path("b"), path("a"));
  EXPECT_TRUE(file.in_place());
  io::remove_file(path("a"));
  EXPECT_FALSE(file.in_place());
}

int64_t modified_ns(const std::string& path) {
  struct stat s {};
  EXPECT_EQ(::stat(path.c_str(), &s), 0);
  return s.st_mtim.tv_sec * 1'000'000'000 + s.st_mtim.tv_nsec;
}

TEST_F(Files, a_copy_has_content_and_time_of_the_original) {
  std::string large(20'000'001, 'x');
  large[12'345'678] = 'y';
  for (const std::string& content : {std::string(), std::string("small"), large}) {
    io::write_file_atomically(path("a"), content);
    timespec times[2] = {{5, 6}, {1'600'000'000, 123'456'789}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path("a").c_str(), times, 0), 0);
    io::copy_file_atomically(path("a"), path("b"));
    EXPECT_EQ(io::read_file(path("b")), content);
    EXPECT_EQ(modified_ns(path("b")), 1'600'000'000'123'456'789);
  }
  EXPECT_EQ(io::list_directory(directory_), (std::vector<std::string>{"a", "b"}));
}

TEST_F(Files, a_copy_that_fails_anywhere_leaves_the_old_one) {
  io::write_file_atomically(path("a"), "new");
  int failures = 0;
  for (int at = 0;; ++at) {
    io::write_file_atomically(path("b"), "old");
    g_fail_at = at;
    io::set_call_hook([](int64_t, const char* call, const std::string& file) {
      if (g_fail_at-- == 0) io::fail_call(call, file, ENOSPC);
    });
    bool failed = false;
    try {
      io::copy_file_atomically(path("a"), path("b"));
    } catch (const io::Failure&) {
      failed = true;
    }
    io::set_call_hook(nullptr);
    EXPECT_EQ(io::read_file(path("b")), failed ? "old" : "new");
    EXPECT_EQ(io::list_directory(directory_), (std::vector<std::string>{"a", "b"}));
    if (!failed) break;
    ++failures;
  }
  EXPECT_EQ(failures, 10);  // open, fstat, open, read, write, fstat, fsync, futimens, close, rename
}

TEST_F(Files, an_original_that_changes_is_not_copied) {
  io::write_file_atomically(path("a"), "12345");
  static std::string changing;
  changing = path("a");
  io::set_call_hook([](int64_t, const char* call, const std::string&) {
    if (std::string(call) == "write") {
      io::set_call_hook(nullptr);
      io::File(changing, File::Mode::append).append("6");
    }
  });
  EXPECT_NE(message_of([&] { io::copy_file_atomically(path("a"), path("b")); }, 0)
                .find("changed while it was copied"),
            std::string::npos);
  io::set_call_hook(nullptr);
  EXPECT_EQ(io::list_directory(directory_), std::vector<std::string>{"a"});
}

TEST_F(Files, directories) {
  io::make_directories(path("a/b/c"));
  io::make_directories(path("a/b/c/"));
  EXPECT_TRUE(io::is_directory(path("a/b/c")));
  // Another process makes the directory first, and removes it again.
  static int others = 0;
  others = 0;
  io::set_call_hook([](int64_t, const char* call, const std::string& part) {
    if (call == std::string("mkdir") && others++ == 0) ::mkdir(part.c_str(), 0777);
    if (call == std::string("stat") && others == 1) ::rmdir(part.c_str());
  });
  io::make_directories(path("a/other"));
  io::set_call_hook(nullptr);
  EXPECT_EQ(others, 2);
  EXPECT_TRUE(io::remove_directory(path("a/other")));
  EXPECT_EQ(io::list_directory(path("a")), std::vector<std::string>{"b"});
  EXPECT_TRUE(io::list_directory(path("none")).empty());
  io::write_file_atomically(path("file"), "");
  EXPECT_NE(message_of([&] { io::make_directories(path("file/x")); }, EEXIST)
                .find(path("file") + ": cannot"),
            std::string::npos);
  EXPECT_NE(message_of([&] { io::make_directories(path("file")); }, EEXIST).find("file"),
            std::string::npos);
  EXPECT_FALSE(io::exists(path("file/x")));
  EXPECT_TRUE(io::remove_file(path("file")));
  EXPECT_FALSE(io::remove_file(path("file")));
  EXPECT_EQ(io::parent_of("a/b"), "a");
  EXPECT_EQ(io::parent_of("/a"), "/");
  EXPECT_EQ(io::parent_of("a"), ".");
  EXPECT_GT(io::free_bytes(directory_), 0);
}

TEST_F(Files, a_link_is_replaced) {
  io::write_file_atomically(path("a"), "of a");
  io::write_file_atomically(path("b"), "of b");
  for (const char* target : {"a", "b", "none", "a"}) {
    EXPECT_TRUE(io::replace_symlink(target, path("link")));
    EXPECT_EQ(std::filesystem::read_symlink(path("link")), target);
  }
  EXPECT_EQ(io::read_file(path("link")), "of a");
  EXPECT_EQ(io::list_directory(directory_), (std::vector<std::string>{"a", "b", "link"}));
  message_of([&] { io::replace_symlink("a", path("no/link")); }, ENOENT);
}

TEST_F(Files, calls_are_counted) {
  int64_t before = io::calls_made();
  io::write_file_atomically(path("a"), "x");
  EXPECT_EQ(io::calls_made() - before, 7);
}

}  // namespace
