// SPDX-License-Identifier: Apache-2.0
// CPU time of this host that other programs or other guests of its hypervisor used. A disturbed
// measurement says little about the measured program.
#pragma once

#include "comm/comm.hpp"

namespace host {

class StolenTime {
 public:
  // All ranks call. If ranks run on several hosts, only the time that a hypervisor took from this
  // rank's host is known.
  StolenTime(comm::Comm& world, bool one_host);

  // Returns the seconds of CPU time since the last call (or construction), added up over the host's
  // CPUs. The kernel counts in ticks of 10 ms, so an amount that is_much() calls little may be
  // zero. All ranks call.
  double since_last();
  // True if the time taken from a step of this length distorts the measured step time.
  static bool is_much(double stolen_s, double step_s);

 private:
  struct Reading {
    double busy_s = 0, steal_s = 0, own_s = 0;  // own_s: sum over all ranks
  };
  Reading read();
  comm::Comm& world_;
  bool one_host_;
  Reading last_;
};

}  // namespace host
