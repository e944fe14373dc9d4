// SPDX-License-Identifier: Apache-2.0
// Why a run stops before its end, or saves out of turn. Each rank hears its own signals; rank 0
// looks at the clock, the files RUN/stop and RUN/save, and the budget; every decision is agreed
// over all ranks, so one rank is enough and none goes alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "config/table.hpp"
#include "job/time_limit.hpp"

namespace job {

// [limits] of the deck.
struct LimitOptions {
  std::string wall_time = "auto";
  double margin_s = 120;
  std::vector<std::string> signals = {"USR1", "TERM", "HUP"};
  double core_hours = 0;
  double min_free_gb = 0;
  void bind(config::Table& t);
};

// Handlers for these signals, as early as possible: until then one of them ends the process at
// once. Those of an earlier call that are not among them get their default back. A HUP that the
// parent ignores, as nohup does, stays ignored.
void catch_stop_signals(const std::vector<std::string>& names);

// later ones win
enum class StopReason { none, save_time, save_file, wall_time, signal, budget, stop_file };
// Returns Exit::requeue, or Exit::stopped where the job must not be requeued: somebody stopped it,
// its budget is spent, or its wall time is so short that it gained nothing, so the next attempt
// would gain nothing either. `gained`: the attempt did a step beyond the one it started from, or an
// evaluation that was missing. `half_over`: more than half of the wall time had passed, so a signal
// to an attempt that gained nothing is as good as its end: job scripts send one before it.
base::Exit exit_of(StopReason reason, bool gained, bool half_over);

struct Outlook {
  double step_s = 0, save_s = 0;  // what one more step and one save take, as measured so far
  double core_hours = 0;          // spent by all attempts
};

class Stops {
 public:
  // Asks the scheduler what is left if wall_time = "auto" (rank 0, beside what follows).
  // `directory`: of the run; `begin_s`: when the program was started, from which a wall_time of the
  // deck counts.
  Stops(comm::Comm& world, const LimitOptions& options, const std::string& directory,
        double begin_s, Outside outside = {});

  // All ranks, between two steps or two batches of an evaluation, and while they start. Never
  // returns to "go on" after a stop.
  StopReason agree(const Outlook& outlook);
  // The run has come to its first step. Until then a RUN/stop that was there before is left to
  // agree() after it: a run that turns out to be finished must say so. From now on a save is asked
  // for each time that the last one was begun `save_every_s` ago (0: never).
  void started(double save_every_s);
  // What was decided, for the log: "wall time: 118 s left, margin 120 s + step 0.1 s + save 2.1 s".
  const std::string& text() const { return text_; }
  // After agree() has said stop: what becomes of the job (exit_of).
  base::Exit exit(bool gained) const { return exit_of(agreed_, gained, half_over_); }
  // True if the wall time is so short that another attempt would gain nothing either.
  bool too_short(bool gained) const {
    return (agreed_ == StopReason::wall_time || agreed_ == StopReason::signal) &&
           exit(gained) == base::Exit::stopped;
  }
  // For an attempt that gained nothing within its wall time: that it did, and how much time it
  // needs. "" but at rank 0.
  std::string way_out(const Outlook& outlook) const;
  // For the console. Waits a few seconds for the scheduler's first answer.
  std::string describe();
  // All ranks: a save begins; it has been committed. A request in RUN/save that the save was for is
  // fulfilled then, and not before: rank 0 removes the file.
  void save_begins();
  void save_committed();
  // The stop was carried out: rank 0 removes RUN/stop if that was the reason.
  void done(StopReason reason);

 private:
  StopReason look(const Outlook& outlook);

  comm::Comm& world_;
  const LimitOptions& options_;
  std::string stop_file_, save_file_;
  std::function<double()> now_s_;
  std::unique_ptr<TimeLimit> time_limit_;  // rank 0
  bool old_stop_file_ = false;
  bool save_wanted_ = false, being_saved_ = false;  // RUN/save (rank 0)
  double looked_s_ = -1e9;
  double save_every_s_ = 0, last_save_s_ = 0;  // rank 0's clock decides
  StopReason seen_ = StopReason::none;
  std::string seen_text_, text_;
  StopReason agreed_ = StopReason::none;
  // more than half of the wall time had passed when the ranks agreed to stop
  bool half_over_ = false;
};

}  // namespace job
