// SPDX-License-Identifier: Apache-2.0
// Names and registers a thread. Every thread of this program does this first.
#pragma once

#include <future>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace base {

// Names the calling thread (at most 15 bytes, "loader 3") for debuggers and the flight page. Blocks
// the signals that stop a run, because only the main thread handles them. Gives the thread a
// separate stack for fatal signals, so that a stack overflow can be reported.
class ThreadScope {
 public:
  explicit ThreadScope(const std::string& name);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
};

// Registers the main thread, which handles signals. Call it once, before other threads start.
void register_main_thread();
// Names a thread of the compute team. It runs in spans of the main thread, so it needs no place in
// the flight page.
void name_compute_thread(int number);

// Starts a thread of this name. The destructor of the returned jthread joins it.
template <class Work>
std::jthread thread(const std::string& name, Work work) {
  return std::jthread([name, work = std::move(work)]() mutable {
    const ThreadScope scope(name);
    work();
  });
}

// Runs `work` in a new thread of this name, and returns its future result.
template <class Work>
auto async(const std::string& name, Work work) {
  return std::async(std::launch::async, [name, work = std::move(work)]() mutable {
    const ThreadScope scope(name);
    return work();
  });
}

}  // namespace base
