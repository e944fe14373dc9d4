// SPDX-License-Identifier: Apache-2.0
// Tests that a shortage of memory is written down where it happens, with the buffers of that time.
#include "base/shortage.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "device/live_buffers.hpp"
#include "device/memory.hpp"

namespace device {
namespace {

std::string live_buffers() {
  std::string text(4096, '\0');
  text.resize(describe_live_buffers(text.data(), text.size()));
  return text;
}

TEST(LiveBuffers, ShowCategoriesAndTheLargest) {
  Ledger ledger;
  const std::string before = live_buffers();
  {
    const Buffer weights(Kind::cpu, ledger, "weights_of_a_test", 3 << 20);
    Buffer first(Kind::cpu, ledger, "gradients", 1 << 20);
    const Buffer moved = std::move(first);
    const Buffer more(Kind::cpu, ledger, "gradients", 1 << 20);
    const Buffer planned(Kind::plan, ledger, "planned", int64_t{1} << 40);
    const std::string text = live_buffers();
    EXPECT_NE(text.find("weights_of_a_test 3.0 in 1"), std::string::npos) << text;
    EXPECT_NE(text.find("gradients 2.0 in 2"), std::string::npos) << text;
    EXPECT_NE(text.find("largest buffers, MiB: weights_of_a_test 3.0,"), std::string::npos) << text;
    EXPECT_EQ(text.find("planned"), std::string::npos) << text;
  }
  EXPECT_EQ(live_buffers(), before);
}

constexpr const char* kUnlimited = "this machine limits no address space";

// Lets the address space of this process grow by at most 64 MiB. Returns false if that is not
// possible: emulators of processors apply no limit.
bool limit_memory() {
  long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  const rlim_t most = rlim_t(pages) * rlim_t(::sysconf(_SC_PAGESIZE)) + (rlim_t{64} << 20);
  const rlimit limit{most, most};
  ::setrlimit(RLIMIT_AS, &limit);
  return ::mmap(nullptr, size_t{512} << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
         MAP_FAILED;
}

// Runs `work`, which must run out of memory, in a child; `limited`: of little memory. Returns what
// the child writes down.
template <class Work>
std::string shortage_of(const Work& work, bool limited = true) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    base::forget_shortage();  // other tests of this program have made one
    base::add_shortage_source(describe_live_buffers);
    base::note_failing_new();
    if (limited && !limit_memory()) {
      (void)!::write(ends[1], kUnlimited, std::strlen(kUnlimited));
      ::_exit(0);
    }
    try {
      work();
    } catch (const std::exception&) {
    }
    const char* text = base::shortage_text();
    (void)!::write(ends[1], text, std::strlen(text));
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text(16384, '\0');
  size_t used = 0;
  for (ssize_t n = 1; n > 0; used += size_t(std::max<ssize_t>(n, 0)))
    n = ::read(ends[0], text.data() + used, text.size() - used);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  text.resize(used);
  return text;
}

#ifndef __SANITIZE_ADDRESS__  // it reserves more address space than any limit
TEST(Shortage, OfABufferNamesItAndThoseThatAreThere) {
  const std::string text = shortage_of([] {
    Ledger ledger;
    const Buffer weights(Kind::cpu, ledger, "weights", 8 << 20);
    const Buffer more(Kind::cpu, ledger, "activations", 512 << 20);
  });
  if (text == kUnlimited) GTEST_SKIP() << text;
  EXPECT_NE(text.find("512.0 MiB for activations\n"), std::string::npos) << text;
  EXPECT_NE(text.find("that ulimit -v allows"), std::string::npos) << text;
  EXPECT_NE(text.find("weights 8.0 in 1"), std::string::npos) << text;
  EXPECT_NE(text.find("phase start, step 0, in thread"), std::string::npos) << text;
}

TEST(Shortage, OfAnObjectIsNotedBeforeItIsThrown) {
  const std::string text = shortage_of([] {
    Ledger ledger;
    const Buffer weights(Kind::cpu, ledger, "weights", 8 << 20);
    const auto large = std::make_unique<char[]>(size_t{512} << 20);
    // A compiler may leave out an allocation that nothing reads.
    asm volatile("" : : "r"(large.get()) : "memory");
  });
  if (text == kUnlimited) GTEST_SKIP() << text;
  EXPECT_NE(text.find("an object of the program"), std::string::npos) << text;
  EXPECT_NE(text.find("weights 8.0 in 1"), std::string::npos) << text;
}
#endif

TEST(Shortage, OfAnArenaIsNoted) {
  const std::string text = shortage_of(
      [] {
        Ledger ledger;
        Arena arena(Kind::cpu, ledger, "activations", 1024);
        arena.save(1024);
      },
      false);
  EXPECT_NE(text.find("the activation arena, which was planned smaller"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace device
