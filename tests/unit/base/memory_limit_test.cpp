// SPDX-License-Identifier: Apache-2.0
// Tests messages where the address space is limited.
#include "base/memory_limit.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <new>
#include <system_error>

namespace {

using base::Exit;

TEST(MemoryLimit, ExceptionsHaveTheirExitCodes) {
  const base::Error memory = base::error_of(std::bad_alloc());
  EXPECT_EQ(memory.code(), Exit::mesh);
  EXPECT_NE(std::string(memory.what()).find("out of memory"), std::string::npos);
  const base::Error thread = base::error_of(
      std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  EXPECT_EQ(thread.code(), Exit::mesh);
  for (const char* part :
       {"a thread could not be started", "ulimit", "run.threads", "loader.threads"})
    EXPECT_NE(std::string(thread.what()).find(part), std::string::npos) << thread.what();
  EXPECT_EQ(base::error_of(std::system_error(std::make_error_code(std::errc::io_error))).code(),
            Exit::internal);
  const base::Error other = base::error_of(std::runtime_error("something else"));
  EXPECT_EQ(other.code(), Exit::internal);
  EXPECT_STREQ(other.what(), "something else");
}

// Sets the limit while it lives. Sanitizers reserve far more than any limit.
struct Limited {
  explicit Limited(int64_t more) {
    getrlimit(RLIMIT_AS, &before);
    rlimit huge = before;
    huge.rlim_cur = rlim_t{1} << 50;  // the used address space is known only with a limit
    set = setrlimit(RLIMIT_AS, &huge) == 0;
    used = base::address_space().used;
    huge.rlim_cur = rlim_t(used + more);
    set = set && setrlimit(RLIMIT_AS, &huge) == 0;
  }
  ~Limited() { setrlimit(RLIMIT_AS, &before); }
  rlimit before{};
  int64_t used = 0;
  bool set = false;
};

TEST(MemoryLimit, RefusesWhatIsNotLeft) {
  constexpr int64_t kMiB = 1 << 20;
  // there is no limit
  if (base::address_space().limit == 0) base::need_address_space(int64_t{1} << 60, "anything");
  Limited limited(100 * kMiB);
  if (!limited.set) GTEST_SKIP() << "the limit cannot be set here";
  if (!std::filesystem::exists("/proc/self/statm")) GTEST_SKIP() << "needs /proc";
  const base::AddressSpace space = base::address_space();
  EXPECT_EQ(space.limit, limited.used + 100 * kMiB);
  EXPECT_GT(space.used, 0);
  base::need_address_space(50 * kMiB, "half of it");
  try {
    base::need_address_space(200 * kMiB, "starting 7 threads (run.threads)");
    ADD_FAILURE() << "200 of 100 MiB were granted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), Exit::mesh);
    for (const char* part :
         {"out of memory", "starting 7 threads (run.threads) needs 200 MiB", "ulimit -v"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
  const std::string text = base::error_of(std::bad_alloc()).what();
  EXPECT_NE(text.find("ulimit -v allows"), std::string::npos) << text;
}

TEST(MemoryLimit, StacksOfThreads) {
  EXPECT_EQ(base::stack_bytes(0), 0);
  EXPECT_EQ(base::stack_bytes(6), 6 * base::stack_bytes(1));
  EXPECT_GT(base::stack_bytes(1), 0);
}

}  // namespace
