// SPDX-License-Identifier: Apache-2.0
// Says when a process that makes no progress hangs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

namespace job {

// Counts the spans that this process has begun, without waits, and the MiB that it has read and
// written. Some long work is one span, such as copying a file to the node, and still makes
// progress.
uint64_t work_so_far();

class ProgressClock {
 public:
  // A process hangs after `limit_s` seconds without progress. A phase that once stood still for
  // more than a quarter of its limit, and went on, gets four times that.
  explicit ProgressClock(double limit_s) : limit_s_(limit_s) {}

  // Call it often. `begun` counts the process's work; it makes progress when the count or the phase
  // changes. `seconds`: since the last call. Returns true if the process hangs now, and again after
  // each further limit.
  bool tick(uint64_t begun, const std::string& phase, double seconds) {
    if (begun != begun_ || phase != phase_) {
      longest_s_[phase_] = std::max(longest_s_[phase_], idle_s_);
      begun_ = begun;
      phase_ = phase;
      idle_s_ = unreported_s_ = 0;
      return false;
    }
    idle_s_ += seconds;
    unreported_s_ += seconds;
    if (unreported_s_ <= limit_s()) return false;
    unreported_s_ = 0;
    return true;
  }
  double idle_s() const { return idle_s_; }
  double limit_s() const {
    const auto known = longest_s_.find(phase_);
    return known == longest_s_.end() ? limit_s_ : std::max(limit_s_, 4 * known->second);
  }

 private:
  double limit_s_;
  uint64_t begun_ = 0;
  std::string phase_;
  double idle_s_ = 0, unreported_s_ = 0;
  std::map<std::string, double> longest_s_;  // without progress, by phase
};

}  // namespace job
