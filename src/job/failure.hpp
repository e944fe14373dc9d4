// SPDX-License-Identifier: Apache-2.0
// How ranks that fail end together.
#pragma once

#include <functional>
#include <string>

#include "comm/comm.hpp"

namespace job {

// The run was asked to stop before its first step: no failure. All ranks throw it, at the same
// place.
class AskedToStop : public base::Error {
 public:
  // `why`: for the log. Exit::requeue, or Exit::stopped. `way_out`: what to do before the next
  // attempt, for the log and the report; "": nothing, the same command continues.
  AskedToStop(base::Exit code, const std::string& why, const std::string& way_out)
      : base::Error(code, why, true), way_out_(way_out) {}
  const std::string& way_out() const { return way_out_; }

 private:
  std::string way_out_;
};

// Before anything runs: does the work and returns 0, or, if a rank failed, the exit code of all:
// the first cause (lowest rank) is printed, and reported if the run directory is open. Ranks that
// fail in different ways end together. The work must not leave one rank waiting for another that
// has thrown.
int try_on_all(comm::Comm& world, const std::function<void()>& work);

// Does the work and returns its exit code. An error of one rank ends the job while everything of
// this rank still stands: destructors might wait for other ranks, which wait for this one.
int end_all_on_error(comm::Session& session, const std::function<int()>& work);

}  // namespace job
