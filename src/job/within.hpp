// SPDX-License-Identifier: Apache-2.0
// Work that must not hold up its caller.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/thread_scope.hpp"

namespace job {

// Calls `work` in a thread of its own and waits for it, at most this long. Another thread that
// hangs may hold the log's lock, or nothing may read the console any more.
template <class Work>
void within(double seconds, Work work) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  std::thread([work = std::move(work), done] {
    const base::ThreadScope scope("report");
    work();
    *done = true;
  }).detach();
  for (base::Stopwatch watch; !*done && watch.seconds() < seconds;)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace job
