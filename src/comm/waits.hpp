// SPDX-License-Identifier: Apache-2.0
// The time that this process's main thread spends in exchanges of host memory, over all
// communicators. It shows which rank the others wait for: the one that waits least.
#pragma once

#include "base/clock.hpp"

namespace comm {

struct Waits {
  double waiting_s = 0;    // in exchanges that have begun, and in agreements
  double beginning_s = 0;  // until exchanges have begun
};
// The counts so far. Only the main thread reads and writes them.
inline Waits& waits() {
  static Waits made;
  return made;
}

// Counts its life as waiting.
class CountedWait {
 public:
  CountedWait() = default;
  CountedWait(const CountedWait&) = delete;
  ~CountedWait() { waits().waiting_s += watch_.seconds(); }

 private:
  base::Stopwatch watch_;
};

}  // namespace comm
