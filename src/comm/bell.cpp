// SPDX-License-Identifier: Apache-2.0
#include "comm/bell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace comm {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(Bell) == 3 * sizeof(uint32_t));

void Bell::ring() {
  rung_.fetch_add(1);
  if (attended_.load() || !sleepers_.load()) return;
  ::syscall(SYS_futex, &rung_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Bell::wait(uint32_t heard, std::optional<Span> most) {
  timespec span{};
  if (most) {
    span.tv_sec = most->count() / 1'000'000'000;
    span.tv_nsec = most->count() % 1'000'000'000;
  }
  sleepers_.fetch_add(1);
  ::syscall(SYS_futex, &rung_, FUTEX_WAIT, heard, most ? &span : nullptr, nullptr, 0);
  sleepers_.fetch_sub(1);
}

}  // namespace comm
