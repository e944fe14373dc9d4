// SPDX-License-Identifier: Apache-2.0
// Time that this process lost to its machine: its CPU ran something else, or memory was short. It
// knows no other rank.
#pragma once

#include <string>
#include <vector>

namespace host {

class LostTime {
 public:
  struct Seconds {
    double stolen = 0;  // ready to run, but the CPU ran another thread or another guest
    double memory = 0;  // stalled until memory was free or read back
  };
  // Watches this many compute threads: the caller and the threads of its parallel regions. `proc`
  // and `cgroups` are the system's folders.
  explicit LostTime(int threads, std::string proc = "/proc",
                    std::string cgroups = "/sys/fs/cgroup");

  // Returns what was lost since the last call, or since construction. The compute thread that lost
  // the most counts, because the others wait for it. A time that the system does not report is 0.
  Seconds since_last();

 private:
  Seconds read() const;
  double delay_s() const;
  double steal_s() const;
  double memory_s() const;

  std::string proc_, memory_file_;
  std::vector<int> threads_;
  Seconds last_;
};

}  // namespace host
