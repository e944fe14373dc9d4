// SPDX-License-Identifier: Apache-2.0
// Tests the stack of a thread that runs code generated at run time, like oneDNN's products.
#include "job/stacks.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace {

using Code = void (*)(std::atomic<bool>*);

// The call is not the last expression, so that this function's return address stays on the stack.
[[gnu::noinline]] int calls_made_code(Code code, std::atomic<bool>* end) {
  code(end);
  return end->load() ? 1 : 0;
}

TEST(Stacks, CodeMadeAtRunTimeNamesItsCallers) {
#ifndef __x86_64__
  GTEST_SKIP() << "the test runs machine code of x86";
#else
  // loop: cmp byte [rdi], 0; je loop; ret
  const unsigned char bytes[] = {0x80, 0x3F, 0x00, 0x74, 0xFB, 0xC3};
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  std::memcpy(page, bytes, sizeof bytes);
  ASSERT_EQ(::mprotect(page, 4096, PROT_READ | PROT_EXEC), 0);

  job::prepare_stacks();
  std::atomic<bool> end = false;
  std::atomic<int> result = -1;
  std::atomic<bool> starts = false;
  std::thread thread([&] {
    starts = true;
    result = calls_made_code(reinterpret_cast<Code>(page), &end);
  });
  while (!starts) std::this_thread::yield();
  // The thread may still be on its way into the code.
  std::string text;
  for (int i = 0; i < 100 && text.find("\n  ? ") == text.npos; ++i) text = job::collect_stacks();
  end = true;
  thread.join();
  ::munmap(page, 4096);

  EXPECT_EQ(result, 1);
  const size_t at = text.find("\n  ? ");
  ASSERT_NE(at, text.npos) << text;
  EXPECT_NE(text.substr(at + 1, text.find('\n', at + 1) - at).find("calls_made_code"), text.npos)
      << text;
  // No other thread has such lines: their frames are certain.
  EXPECT_EQ(text.find("\nthread ", at), text.npos) << text;
#endif
}

}  // namespace
