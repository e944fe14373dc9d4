// SPDX-License-Identifier: Apache-2.0
// Says when a job that makes no progress hangs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace job {

// Counts the spans that this process has begun, without waits, and the MiB that it has read and
// written. Some long work is one span, such as copying a file to the node, and still makes
// progress.
uint64_t work_so_far();

class ProgressClock {
 public:
  // A process hangs after `limit_s` seconds without progress. If a phase once made no progress for
  // more than a quarter of its limit, and then did, its new limit is four times that duration.
  explicit ProgressClock(double limit_s) : limit_s_(limit_s) {}

  // Call it often. `begun` counts the process's work; it makes progress when the count or the phase
  // changes. `seconds`: since the last call. Returns true if the process hangs now, and again after
  // each further limit.
  //
  // A rank may wait for long while another one works. So `others` returns the work of the other
  // ranks a few times within a limit, and the clock starts anew if that changes. The first look
  // comes early: it only records the work that later looks compare with.
  template <class Others>
  bool tick(uint64_t begun, const std::string& phase, double seconds, const Others& others) {
    if (begun != begun_ || phase != phase_) {
      longest_s_[phase_] = std::max(longest_s_[phase_], idle_s_);
      begun_ = begun;
      phase_ = phase;
      start_anew();
      return false;
    }
    idle_s_ += seconds;
    unreported_s_ += seconds;
    const double limit = limit_s();
    const bool over = unreported_s_ > limit;
    if (over || idle_s_ > looked_s_ + limit / kLooks) {
      looked_s_ = idle_s_;
      const uint64_t work = others();
      if (others_.value_or(work) != work) {
        start_anew();
        return false;
      }
      others_ = work;
    }
    if (over) unreported_s_ = 0;
    return over;
  }
  double idle_s() const { return idle_s_; }
  double limit_s() const {
    const auto known = longest_s_.find(phase_);
    return known == longest_s_.end() ? limit_s_ : std::max(limit_s_, 4 * known->second);
  }

 private:
  // Number of looks at the other ranks per limit. There are few, because a look reads a file of
  // each rank.
  static constexpr double kLooks = 8;

  void start_anew() {
    idle_s_ = unreported_s_ = looked_s_ = 0;
    others_.reset();
  }

  double limit_s_;
  uint64_t begun_ = 0;
  std::string phase_;
  double idle_s_ = 0, unreported_s_ = 0;
  double looked_s_ = 0;                      // idle_s_ at the last look
  std::optional<uint64_t> others_;           // work of the other ranks at the last look
  std::map<std::string, double> longest_s_;  // without progress, by phase
};

}  // namespace job
