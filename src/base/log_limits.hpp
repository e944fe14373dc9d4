// SPDX-License-Identifier: Apache-2.0
// Decide which of many similar lines are written. An object belongs to one place in the program,
// and any thread may call it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace base::log {

// The first n.
class FirstN {
 public:
  explicit FirstN(int64_t n) : n_(n) {}
  bool now() { return count_.fetch_add(1) < n_; }

 private:
  const int64_t n_;
  std::atomic<int64_t> count_{0};
};

// The first one, and every n-th after it.
class EveryN {
 public:
  explicit EveryN(int64_t n) : n_(n) {}
  bool now() { return count_.fetch_add(1) % n_ == 0; }

 private:
  const int64_t n_;
  std::atomic<int64_t> count_{0};
};

// The first one, and then at most one in each period of `seconds`.
class EverySeconds {
 public:
  explicit EverySeconds(double seconds) : seconds_(seconds) {}
  bool now() { return at(now_s()); }
  // For a clock of the caller.
  bool at(double clock_s) {
    double last = last_s_;
    return (last < 0 || clock_s - last >= seconds_) &&
           last_s_.compare_exchange_strong(last, clock_s);
  }

 private:
  const double seconds_;
  std::atomic<double> last_s_{-1};  // -1: none yet
};

}  // namespace base::log
