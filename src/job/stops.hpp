// SPDX-License-Identifier: Apache-2.0
// Decides when a run stops before its end or saves out of turn. Each rank catches its own signals.
// Rank 0 checks the clock, the files RUN/stop and RUN/save, and the budget. All ranks agree on
// every decision, so a request at one rank suffices and all ranks act together.
#pragma once

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

// Installs handlers for these signals. Call it as early as possible: until then one of these
// signals ends the process at once. Signals of an earlier call that are not listed now get their
// default action back. A HUP that the parent ignores, as nohup does, stays ignored.
void catch_stop_signals(const std::vector<std::string>& names);

// Reasons in ascending priority.
enum class StopReason {
  none,
  save_time,
  save_file,
  wall_time,
  signal,
  observer,
  budget,
  stop_file
};
// Returns Exit::requeue, or Exit::stopped if the job must not be requeued: a user stopped it, an
// observer ended it, its budget is spent, or its wall time is too short to gain anything, now or in
// the next attempt. `gained`: the attempt did a step beyond the one it started from, or a missing
// evaluation. `half_over`: more than half of the wall time had passed.
// Job scripts send a signal before the end, so a signal then counts as the end of an attempt that
// gained nothing.
base::Exit exit_of(StopReason reason, bool gained, bool half_over);

struct Outlook {
  double step_s = 0, save_s = 0;  // measured time of one more step and of one save
  double core_hours = 0;          // spent by all attempts
};

class Stops {
 public:
  // Asks the scheduler for the time left if wall_time = "auto" (rank 0, in the background).
  // `directory` is the run directory; "" = there are no files to look for. `begin_s` is the start
  // of the program, from which a wall_time of the deck counts.
  Stops(comm::Comm& world, const LimitOptions& options, const std::string& directory,
        double begin_s, Outside outside = {});

  // Sets this rank's reason for the next agreement.
  void ask(StopReason reason, const std::string& text);
  // Returns the agreed reason to stop or save. All ranks call between two steps or two batches of
  // an evaluation, and while they start. Never returns to "go on" after a stop.
  StopReason agree(const Outlook& outlook);
  // Call it when the run has come to its first step. Until then agree() ignores a RUN/stop that
  // already existed, because a run that turns out to be finished must report that. From now on
  // agree() asks for a save whenever the last one began `save_every_s` ago (0: never).
  void started(double save_every_s);
  // Returns the decision for the log: "wall time: 118 s left, margin 120 s + step 0.1 s + save 2.1
  // s".
  const std::string& text() const { return agreed_.text; }
  // Returns the exit code of the job after agree() has returned a stop (exit_of).
  base::Exit exit(bool gained) const { return exit_of(agreed_.stop, gained, agreed_.half_over); }
  // True if the wall time is so short that another attempt would gain nothing either.
  bool too_short(bool gained) const {
    return (agreed_.stop == StopReason::wall_time || agreed_.stop == StopReason::signal) &&
           exit(gained) == base::Exit::stopped;
  }
  // Explains that the attempt gained nothing within its wall time, and how much time it needs.
  // Returns "" on ranks other than 0.
  std::string way_out(const Outlook& outlook) const;
  // Returns the console line. Waits a few seconds for the scheduler's first answer.
  std::string describe();
  // Call these when a save begins, and when it is committed; all ranks call. Rank 0 removes
  // RUN/save once the save that it asked for is committed, and not before.
  void save_begins();
  void save_committed();
  // Call it when the stop was carried out: rank 0 removes RUN/stop if that was the reason.
  void done(StopReason reason);

 private:
  // The files of the run directory that hold requests. Rank 0 looks for them.
  struct Files {
    std::string stop, save;
    bool old_stop = false;  // RUN/stop existed at the start; it does not count until started()
    bool save_wanted = false, being_saved = false;  // RUN/save
    double looked_s = -1e9;                         // clock at the last look
  };
  // checkpoint.every_s; rank 0's clock decides.
  struct SaveTimer {
    double every_s = 0, last_s = 0;
  };
  struct Request {
    StopReason reason = StopReason::none;
    std::string text;
  };
  struct Agreed {
    StopReason stop = StopReason::none;  // none while the ranks go on or only save
    std::string text;                    // of the last decision, saves included
    bool half_over = false;              // more than half of the wall time had passed at the stop
  };
  StopReason look(const Outlook& outlook);

  comm::Comm& world_;
  const LimitOptions& options_;
  Files files_;
  std::function<double()> now_s_;
  std::unique_ptr<TimeLimit> time_limit_;  // rank 0
  SaveTimer save_timer_;
  Request seen_;  // the most important one that this rank knows
  Agreed agreed_;
};

}  // namespace job
