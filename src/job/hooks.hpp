// SPDX-License-Identifier: Apache-2.0
// Hooks: commands of the deck that run beside training when something has happened. A thread of
// rank 0 runs them one after another, in the order of the events, and the job never waits for one
// before its end. Step events may come faster than their hook ends. Then only the newest of
// consecutive waiting step events stays.
//
// One process of the job runs the hooks `error` and `end`:
//   the job ends by itself, or was asked to stop    rank 0; the others wait for it
//   an error, or a hang                             the one that writes the report
//                                                   (failure_report.hpp), before the job is aborted
// A job that is killed or crashes runs none, and its guard ends the hook that still runs. A job
// that fails before it has a run directory and a deck without faults runs none either.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/comm.hpp"
#include "config/duration.hpp"
#include "config/table.hpp"
#include "job/command.hpp"
#include "job/hook_facts.hpp"

namespace job {

enum class HookEvent { start, step, evaluation, checkpoint, error, end };

// [hooks] of the deck.
struct HookOptions {
  std::map<HookEvent, std::string> commands;  // "" = none
  config::Duration every;                     // step hooks
  double timeout_s = 60;
  bool stops_on_failure = false;
  void bind(config::Table& t);
  const std::string& command_of(HookEvent what) const;
  bool any() const;
};

// It has many members because the queue, the hook that runs and the end of the job have some each.
class Hooks {
 public:
  // One at a time; all ranks make it. `watch_limit_s`: watch.limit_s. Other ranks, which wait
  // during the hooks after an error, must not take that for a hang.
  Hooks(const HookOptions& options, const std::string& run_name, double watch_limit_s);
  ~Hooks();  // kills the hook that runs
  Hooks(const Hooks&) = delete;

  // Hooks run from now on, about this run directory. open_run_directory calls it for the hooks that
  // exist.
  static void use(const std::string& run);
  // Call it when another job has taken the run directory.
  static void lose_directory();
  static Hooks* current();  // null: none exist

  // Adds to the facts of all events to come.
  void know(HookFacts facts);
  // Runs the hook of this event, if the deck has one, when those before it have ended.
  void tell(HookEvent what, HookFacts facts);
  // Returns which hook failed, if that must stop the run; "" otherwise.
  std::string wants_stop() const;
  // Runs the hook `end` at rank 0, after those that wait. All ranks call, and wait for it.
  void end(comm::Comm& world, base::Exit code, const std::string& reason, HookFacts facts);

  // Runs the hooks `error` and `end` before this process ends the job for an error. `first`: it was
  // the first to write the report. Others wait until the first one ends the job.
  static void after_error(bool first, int code, const std::string& reason) noexcept;
  // Returns the longest time that this takes; 0 without hooks.
  static double most_after_error_s() noexcept;
  // Runs the hook `end` of a job that was asked to stop before its first step. All ranks may call.
  static void before_first_step(int code, const std::string& reason) noexcept;

 private:
  struct Event {
    HookEvent what;
    HookFacts facts;
    int64_t left_out = 0;  // earlier step events whose hooks do not run
  };
  void work();
  void run(Event event);
  void judge(const Event& event, const CommandEnd& end);
  // From now on, hooks that wait for longer than this are left out, except the last ones.
  void close(double seconds);
  bool too_late(HookEvent what) const;
  void say_left_out();
  bool idle() const;
  void last_words(bool failed, int code, const std::string& reason);
  bool runs_here() const;

  const HookOptions options_;
  const std::string run_name_;
  const double limit_after_error_s_;
  std::string run_;  // the run directory; "" = none yet
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  HookFacts known_;
  std::deque<Event> waiting_;
  bool busy_ = false;
  int64_t steps_left_out_ = 0;  // since the step event that was taken last
  int64_t others_left_out_ = 0;
  double limit_s_;                  // of each hook
  std::optional<double> closed_s_;  // when close() ends, on base::now_s()
  std::string failure_;
  std::atomic<bool> has_failed_{false}, quits_{false}, lost_{false}, after_error_{false};
  std::map<HookEvent, double> warned_s_;  // of the thread
  CommandGuard guard_;
  std::jthread thread_;  // once there is an event
};

}  // namespace job
