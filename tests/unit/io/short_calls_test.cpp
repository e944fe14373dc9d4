// SPDX-License-Identifier: Apache-2.0
// Tests calls that move fewer bytes than requested, or are interrupted, as the system may do at any
// time. This program replaces the C library's functions by ones that do so on request.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <string>
#include <vector>

#include "io/files.hpp"

namespace short_calls {

ssize_t g_most = 0;  // bytes that a call moves; 0 = all
int g_calls = 0, g_interrupts = 0;

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// True if the call must fail, with errno set: every third call is interrupted. A loop that makes no
// progress gets an error.
bool refused() {
  if (g_most == 0) return false;
  constexpr int kEnough = 5000;
  errno = ++g_calls > kEnough ? EIO : EINTR;
  if (g_calls <= kEnough && g_calls % 3 != 0) return false;
  ++g_interrupts;
  return true;
}

size_t cut(size_t bytes) { return g_most == 0 ? bytes : std::min(bytes, size_t(g_most)); }

// Returns the pieces that hold the first g_most bytes.
std::vector<iovec> cut(const iovec* pieces, int count) {
  std::vector<iovec> out(pieces, pieces + count);
  if (g_most == 0) return out;
  size_t left = size_t(g_most);
  for (iovec& piece : out) left -= piece.iov_len = std::min(piece.iov_len, left);
  return out;
}

// NOLINTBEGIN: the C library's names and types
extern "C" ssize_t pread(int file, void* data, size_t size, off_t at) {
  static auto next = real<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  return refused() ? -1 : next(file, data, cut(size), at);
}
extern "C" ssize_t write(int file, const void* data, size_t size) {
  static auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  return refused() ? -1 : next(file, data, cut(size));
}
extern "C" ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
  static auto next = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return refused() ? -1 : next(file, data, cut(size), at);
}
extern "C" ssize_t preadv(int file, const iovec* data, int count, off_t at) {
  static auto next = real<ssize_t (*)(int, const iovec*, int, off_t)>("preadv");
  std::vector<iovec> some = cut(data, count);
  return refused() ? -1 : next(file, some.data(), count, at);
}
extern "C" ssize_t pwritev(int file, const iovec* data, int count, off_t at) {
  static auto next = real<ssize_t (*)(int, const iovec*, int, off_t)>("pwritev");
  std::vector<iovec> some = cut(data, count);
  return refused() ? -1 : next(file, some.data(), count, at);
}
// NOLINTEND

}  // namespace short_calls

namespace {

using short_calls::g_calls, short_calls::g_interrupts, short_calls::g_most;

class ShortCalls : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "trainer_short_XXXXXX";
    int file = ::mkstemp(path_.data());
    ASSERT_GE(file, 0);
    ::close(file);
    std::iota(text_.begin(), text_.end(), char(1));
    g_calls = g_interrupts = 0;
    g_most = GetParam();
  }
  void TearDown() override {
    const bool came = g_interrupts > 0;
    g_most = 0;
    EXPECT_TRUE(came) << "no call was replaced";
    ::unlink(path_.c_str());
  }
  // Cuts text_ into pieces of different lengths, one of them empty.
  std::vector<size_t> ends() const { return {1, 1, 4, 20, 21, 60, 100}; }

  std::string path_, text_ = std::string(100, ' ');
};

TEST_P(ShortCalls, one_piece) {
  io::File file(path_, io::File::Mode::write);
  file.write_at(text_.data(), 100, 7);
  std::string back(100, '?');
  file.read_at(back.data(), 100, 7);
  EXPECT_EQ(back, text_);
  EXPECT_EQ(file.size(), 107);
  g_most = 0;
  EXPECT_EQ(io::read_file(path_), std::string(7, '\0') + text_);
}

TEST_P(ShortCalls, many_pieces) {
  io::File file(path_, io::File::Mode::write);
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  for (size_t end : ends()) {
    pieces.push_back(std::string_view(text_).substr(begin, end - begin));
    begin = end;
  }
  file.write_at(pieces, 7);
  g_most = 0;
  EXPECT_EQ(io::read_file(path_), std::string(7, '\0') + text_);
  g_most = GetParam();
  std::string back(100, '?');
  std::vector<std::span<char>> places;
  begin = 0;
  for (size_t end : ends()) {
    places.push_back(std::span(back).subspan(begin, end - begin));
    begin = end;
  }
  file.read_at(places, 7);
  EXPECT_EQ(back, text_);
}

TEST_P(ShortCalls, appended) {
  io::File file(path_, io::File::Mode::append);
  file.append(text_);
  file.append("the end");
  g_most = 0;
  EXPECT_EQ(io::read_file(path_), text_ + "the end");
  g_most = GetParam();
  EXPECT_EQ(io::read_file(path_), text_ + "the end");
}

INSTANTIATE_TEST_SUITE_P(Bytes, ShortCalls, testing::Values(1, 3, 17, 40));

}  // namespace
