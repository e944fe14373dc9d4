// SPDX-License-Identifier: Apache-2.0
// Lets ranks that wait rest. Open MPI's waiting ranks poll, and call sched_yield between polls. On
// a machine with more ranks than cores they would still take their share of the cores from the
// ranks that work. The tests load this library before the C library (LD_PRELOAD).
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace {

// Longer pauses between two calls are work, so the second call begins another wait.
constexpr int64_t kWork_ns = 10'000;
constexpr int64_t kShortest_ns = 100'000, kLongest_ns = 500'000;

int64_t now_ns() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

thread_local int64_t begin_ns = 0, last_ns = 0;

}  // namespace

// Sleeps a quarter of the time that this wait has taken, so that a long one costs few sleeps and no
// wait becomes longer by more than about a quarter.
extern "C" int sched_yield() noexcept {
  const int64_t now = now_ns();
  if (now - last_ns > kWork_ns) begin_ns = now;
  const int64_t waited = now - begin_ns;
  const timespec pause{0, std::clamp(waited / 8, kShortest_ns, kLongest_ns)};
  ::nanosleep(&pause, nullptr);
  last_ns = now_ns();
  return 0;
}
