// SPDX-License-Identifier: Apache-2.0
// Ends all ranks together if one of them fails.
#pragma once

#include <functional>
#include <string>

#include "comm/comm.hpp"

namespace job {

// Thrown if the run was asked to stop before its first step, which is not a failure. All ranks
// throw it at the same place.
class AskedToStop : public base::Error {
 public:
  // `code` is Exit::requeue or Exit::stopped. The log gets `why`. Log and report get `way_out`:
  // what to do before the next attempt; "" if the same command continues.
  AskedToStop(base::Exit code, const std::string& why, const std::string& way_out)
      : base::Error(code, why, true), way_out_(way_out) {}
  const std::string& way_out() const { return way_out_; }

 private:
  std::string way_out_;
};

// Does the work on all ranks before anything runs. Returns 0, or the exit code of all ranks if a
// rank failed. Then the first cause (lowest rank) is printed, and reported if the run directory is
// open. Ranks that fail in different ways end together. The work must not leave a rank waiting for
// another rank that has thrown.
int try_on_all(comm::Comm& world, const std::function<void()>& work);

// Does the work and returns its exit code. An error of one rank ends the job before this rank
// destroys anything: destructors might wait for other ranks, which wait for this one.
int end_all_on_error(comm::Session& session, const std::function<int()>& work);

// Makes an object on all ranks, before any of them runs it. Returns the exit code of its run().
template <class Make>
int make_and_run(comm::Session& session, const Make& make) {
  decltype(make()) object;
  if (int failed = try_on_all(session.world(), [&] { object = make(); })) return failed;
  return end_all_on_error(session, [&] { return int(object->run()); });
}

}  // namespace job
