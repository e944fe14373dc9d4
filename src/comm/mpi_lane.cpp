// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_lane.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.hpp"
#include "base/thread_scope.hpp"

namespace comm {
namespace {

// A poll that used more CPU time than this has moved data, and there is probably more to move.
constexpr double kMoved_s = 4e-6, kMovedPerExchange_s = 1e-6;
// The rest after a poll that moved nothing. A shorter one would cost the computing thread on the
// same core more than exchanges gain.
constexpr std::chrono::microseconds kRest{200};
// How long the main thread polls before it sleeps.
constexpr double kPatience_s = 100e-6;
// How long exchanges get to end after another one has failed.
constexpr double kForOthers_s = 0.2;
constexpr std::chrono::milliseconds kLongestSleep{1};  // of the main thread

// CPU seconds of this thread. The time in which other threads had the core does not count.
double computed_s() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

}  // namespace

MpiLane::MpiLane(Bell& bell) : bell_(bell) { in_flight_.reserve(64); }

MpiLane::~MpiLane() { stop(); }

void MpiLane::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  // ring() wakes nobody while the main thread attends, as it may when another thread stops the job.
  bell_.wake_all();
  if (thread_.joinable()) thread_.join();
}

void MpiLane::add(Work& work) {
  work.in_flight = true;
  in_flight_.push_back(&work);
  if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { loop(); });
}

void MpiLane::poll() {
  std::erase_if(in_flight_, [this](Work* work) {
    try {
      if (!work->advance()) return false;
      work->in_flight = false;
    } catch (...) {
      if (!error_) error_ = std::current_exception();  // for the main thread
    }
    return true;
  });
}

// Lets the exchanges beside a failed one end. To find the rank at fault, the verdict compares which
// calls the ranks have ended.
void MpiLane::finish_others() {
  if (std::exchange(others_finished_, true)) return;
  for (base::Stopwatch watch; !in_flight_.empty() && watch.seconds() < kForOthers_s; sched_yield())
    poll();
}

bool MpiLane::busy() const {
  return !error_ && std::any_of(in_flight_.begin(), in_flight_.end(),
                                [](const Work* work) { return !work->idle(); });
}

void MpiLane::wake() {
  bool needed = false;
  {
    std::lock_guard lock(mutex_);
    needed = busy();
  }
  if (needed) bell_.ring();
}

// A thread that only yields keeps its core from the ranks that share it, for up to a millisecond at
// a time. So this thread polls while an answer is likely, and then sleeps if it can be rung.
void MpiLane::wait_until(const std::function<bool()>& done) {
  const Here here(*this);
  base::Stopwatch watch;
  std::unique_lock lock(mutex_);
  while (!done() && !error_) {
    const uint32_t heard = bell_.heard();
    poll();
    if (done()) break;
    const bool can_sleep = !busy() && watch.seconds() > kPatience_s;
    lock.unlock();
    if (can_sleep) {
      bell_.attend(false);
      bell_.wait(heard, kLongestSleep);
      bell_.attend(true);
    } else {
      sched_yield();
    }
    lock.lock();
  }
  if (!error_) return;
  finish_others();
  std::rethrow_exception(error_);
}

Background MpiLane::background() {
  std::lock_guard lock(mutex_);
  return background_;
}

void MpiLane::finish(Work& work) {
  wait_until([&] { return !work.in_flight; });
}

void MpiLane::drain() {
  wait_until([this] { return in_flight_.empty(); });
}

bool MpiLane::poll_aside() {
  const size_t before = in_flight_.size();
  const double begin_s = computed_s();
  poll();
  const double seconds = computed_s() - begin_s;
  background_.seconds += seconds;
  background_.finished += int64_t(before - in_flight_.size());
  return seconds > kMoved_s + kMovedPerExchange_s * double(before);
}

void MpiLane::loop() {
  const base::ThreadScope scope("exchanges");
  while (true) {
    const uint32_t heard = bell_.heard();
    bool moved = false, busy = false;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      if (!main_here_ && !error_) {
        moved = poll_aside();
        busy = this->busy();
      }
    }
    // Between two polls the main thread can start an exchange.
    if (busy && moved) continue;
    bell_.wait(heard, busy ? std::optional<Bell::Span>(kRest) : std::nullopt);
  }
}

}  // namespace comm
