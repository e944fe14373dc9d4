// SPDX-License-Identifier: Apache-2.0
// The bytes on disk and in memory do not depend on threads and on the bytes in flight.
#include "checkpoint/io_limits.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint/checkpoint.hpp"
#include "made_state.hpp"

namespace {

using checkpoint::IoLimits;

constexpr int64_t kMebibyte = 1 << 20;

IoLimits limits_of(int64_t threads, int64_t inflight_mb) {
  IoLimits limits;
  limits.threads = threads;
  limits.inflight_mb = inflight_mb;
  return limits;
}

TEST(IoLimits, BoundTheReadsOfAllThreads) {
  for (const IoLimits& limits : {IoLimits{}, limits_of(1, 2), limits_of(3, 7), limits_of(16, 32)}) {
    EXPECT_LE(2 * limits.threads * limits.largest_read(kMebibyte), limits.inflight_mb << 20);
    EXPECT_GE(limits.largest_read(kMebibyte), kMebibyte);
    EXPECT_EQ(limits.largest_read(kMebibyte) % kMebibyte, 0);
  }
  EXPECT_EQ(IoLimits{}.largest_read(kMebibyte), 64 * kMebibyte);
}

TEST(IoLimits, ChangeNoByte) {
  std::string directory = testing::TempDir() + "trainer_io_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::unique_ptr<comm::Comm> comm = comm::make_plan_comm(1);
  std::string first;
  for (const IoLimits& limits : {IoLimits{}, limits_of(3, 6), limits_of(16, 1 << 10)}) {
    tests::Owner owner(tests::Cut::small_pieces, 0, 1, 5, true),
        back(tests::Cut::uneven, 0, 1, 0, false);
    owner.state.io = back.state.io = limits;
    const std::string path =
        directory + "/" + checkpoint::save(*comm, directory, owner.state, {}).file;
    if (first.empty()) first = io::read_file(path);
    EXPECT_EQ(io::read_file(path), first) << limits.threads;
    ASSERT_TRUE(checkpoint::restore(*comm, directory, back.state, {}));
    EXPECT_EQ(back.problem(5), "") << limits.threads;
    // A damaged block is found whichever thread reads it.
    const checkpoint::Manifest m = checkpoint::inspect(path, 5);
    const size_t at = size_t(m.layout.find("/state/flags")->offset) + 77;
    const char flipped = char(first[at] ^ 1);
    io::File(path, io::File::Mode::write).write_at(&flipped, 1, int64_t(at));
    EXPECT_THROW(checkpoint::restore(*comm, directory, back.state, {}), base::Error);
    io::remove_file(path);
  }
  io::remove_tree(directory);
}

}  // namespace
