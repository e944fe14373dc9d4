// SPDX-License-Identifier: Apache-2.0
// The time that all attempts of a run have spent by kind of device.
#pragma once

#include <map>
#include <string>

#include "train/member_list.hpp"

namespace train {

class DeviceTimes {
 public:
  // Sets what this attempt computes on: the name of its devices, and their number divided by the
  // compute threads of all ranks. CPUs: each thread is a device.
  void use(const std::string& kind, double per_core) {
    kind_ = kind;
    per_core_ = per_core;
  }
  // Adds time on this attempt's devices, given as seconds times compute threads.
  void add(double core_s) { seconds_[kind_] += core_s * per_core_; }
  // Takes over the times of earlier attempts, but keeps this attempt's devices.
  void continue_from(const DeviceTimes& saved) { seconds_ = saved.seconds_; }
  // Seconds times devices, by kind.
  const std::map<std::string, double>& seconds() const { return seconds_; }
  double per_core() const { return per_core_; }

  void members(MemberList& list);

 private:
  std::string kind_ = "cpu";
  double per_core_ = 1;
  std::map<std::string, double> seconds_;
};

}  // namespace train
