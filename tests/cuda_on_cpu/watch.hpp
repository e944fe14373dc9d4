// SPDX-License-Identifier: Apache-2.0
// Checks of the order of accesses, with CUDA_ON_CPU_WATCH=1.
//
// Races: two threads of a launch touch the same place, at least one of them writes, and no barrier
// is between them. Only barriers of the block and of the warp order accesses, not shuffles.
//
// Hazards: work of two streams touches the same 64 bytes, at least one writes, and neither an event
// nor a wait of the host is between them. Timing does not matter, because each stream counts its
// work, and each work item knows what was certain to be done before it in each stream (vector
// clocks).
//
// Copies, fills and the emulated libraries report what they touch. Kernels report it only if they
// are compiled with -fsanitize=thread, whose calls tsan.cpp receives (preset watch).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace cuda_on_cpu {

bool watches();

// The running CUDA thread, for the search for races. fibers.cpp keeps it.
struct RunningThread {
  const void* kernel = nullptr;
  uint16_t number = 0;
  // Intervals are the times between barriers of a block. They are counted over all launches. The
  // launch and the block began with these:
  uint32_t launch = 0, block = 0, interval = 0;
  std::array<uint8_t, 32> warp_barriers{};  // of each warp in this interval

  void begin_launch(const void* which) {
    kernel = which;
    launch = interval + 1;
  }
  void begin_block() {
    pass_barrier();
    block = interval;
  }
  void pass_barrier() {
    ++interval;
    warp_barriers = {};
  }
};
extern RunningThread running;
// True while this thread of the host runs a kernel. Other threads, such as the loader's, may run
// code that reports accesses too, because the linker keeps one of several equal functions.
extern constinit thread_local bool in_kernel;

constexpr size_t kMostStreams = 16;
// How far each stream is.
struct Clock {
  std::array<uint32_t, kMostStreams> at{};
  void join(const Clock& other) {
    for (size_t s = 0; s < kMostStreams; ++s)
      if (other.at[s] > at[s]) at[s] = other.at[s];
  }
};
// The clock of the host: it holds all work that the host has waited for.
Clock& host_clock();
// A number for a new stream; numbers of destroyed ones are used again.
size_t take_stream_number();
void return_stream_number(size_t number);

// Work of a stream, and what was certain to be done before it.
struct WatchedWork {
  size_t stream;
  uint32_t number;
  Clock before;
};
// Adds work to a stream, whose clock moves on.
WatchedWork add_work(size_t stream, Clock& clock);
// Calls `work` as `as`, and throws the first race or hazard found.
bool run_watched(const WatchedWork& as, const std::function<bool()>& work);

// Memory whose accesses are checked.
enum class Memory { device, shared, host };
void watch_memory(const void* begin, size_t bytes, Memory kind);
void forget_memory(const void* begin);

// Reports an access of the running work.
void touch(const void* at, size_t bytes, bool writes);
inline void reads(const void* at, size_t bytes) {
  if (watches()) touch(at, bytes, false);
}
inline void writes(const void* at, size_t bytes) {
  if (watches()) touch(at, bytes, true);
}

}  // namespace cuda_on_cpu
