// SPDX-License-Identifier: Apache-2.0
// CPU time of this host that went to others: to other programs on it, or to other guests of its
// hypervisor. A measurement that it disturbed says little about the program that was measured.
#pragma once

#include "comm/comm.hpp"

namespace host {

class StolenTime {
 public:
  // All ranks. Where ranks run on several hosts only what a hypervisor took is known, and of this
  // rank's host.
  StolenTime(comm::Comm& world, bool one_host);

  // Seconds of CPU time since the last call (or construction), added up over the host's CPUs. The
  // kernel counts in ticks of 10 ms: what is_much() calls little may be none. All ranks.
  double since_last();
  // Whether so much was taken from a step of so many seconds that its time is not the program's
  // own.
  static bool is_much(double stolen_s, double step_s);

 private:
  struct Reading {
    double busy_s = 0, steal_s = 0, own_s = 0;  // own: of all ranks
  };
  Reading read();
  comm::Comm& world_;
  bool one_host_;
  Reading last_;
};

}  // namespace host
