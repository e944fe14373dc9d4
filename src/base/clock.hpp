// SPDX-License-Identifier: Apache-2.0
// Steady time, for durations.
#pragma once

#include <chrono>

namespace base {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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
