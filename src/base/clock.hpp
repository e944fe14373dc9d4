// SPDX-License-Identifier: Apache-2.0
// Steady time, for durations.
#pragma once

#include <chrono>
#include <cstdint>

namespace base {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Stopwatch {
 public:
  double seconds() const { return now_s() - begin_; }
  double restart() {
    double t = now_s(), d = t - begin_;
    begin_ = t;
    return d;
  }

 private:
  double begin_ = now_s();
};

}  // namespace base
