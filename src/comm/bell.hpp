// SPDX-License-Identifier: Apache-2.0
// Memory on which threads sleep until somebody rings. If processes share it, a thread of one
// process wakes threads of another. Zero-filled memory is a valid bell.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace comm {

class Bell {
 public:
  using Span = std::chrono::nanoseconds;

  // Wakes all threads that wait, unless the bell is attended.
  void ring();
  // Wakes all threads that wait, even if the bell is attended.
  void wake_all();
  // While the bell is attended, a thread looks for work all the time, so rings need no system call.
  // After attend(false) that thread looks once more, and rings if there is work.
  void attend(bool here) { attended_.store(here); }
  // How often it has rung. Ask before you look whether there is work, so that no ring is missed.
  uint32_t heard() const { return rung_.load(); }
  // Waits until it has rung since it was `heard`, or for `most`. May end early.
  void wait(uint32_t heard, std::optional<Span> most);

 private:
  void wake_sleepers();

  std::atomic<uint32_t> rung_{0}, attended_{0}, sleepers_{0};
};

}  // namespace comm
