// SPDX-License-Identifier: Apache-2.0
// Writes about the run: a row of metrics and a console line per step, and the last lines.
#pragma once

#include <limits>
#include <optional>

#include "base/process_memory.hpp"
#include "train/attempt.hpp"
#include "train/console_window.hpp"
#include "train/feed.hpp"
#include "train/run_files.hpp"
#include "train/slow_ranks.hpp"

namespace train {

class RunLog {
 public:
  RunLog(Attempt& attempt, RunFiles& files, const Feed& feed, SlowRanks& slow_ranks)
      : attempt_(attempt),
        files_(files),
        feed_(feed),
        slow_ranks_(slow_ranks),
        window_(attempt.recipe.log.console_window) {}

  // Records the report of the settled step in counts, metrics and console. `skipped`: the step made
  // no update.
  void record(const step::StepReport& report, bool skipped);
  // Warns if the run ends with a loss above that of a uniform guess. A finite loss stops no run
  // (guard.nonfinite).
  void warn_if_diverged() const;
  // Prints the last lines of a finished run.
  void finish() const;
  // Prints what the time of all starts of the program was spent on.
  void print_goodput() const;

 private:
  // Model and hardware FLOP/s over the peak; NaN if the peak is not known.
  struct Utilisation {
    double mfu, hfu;
  };
  // Adds a step to the means over the epoch. Returns true if the epoch or the run ends with it.
  bool add_to_epoch(const step::StepReport& report, bool skipped);
  void end_epoch();
  bool epoch_ends() const;
  Utilisation utilisation(const step::StepReport& report, double seconds) const;
  void write_row(const step::StepReport& report, bool skipped, double seconds,
                 const Utilisation& use);
  void add_machine(records::Metrics::Row& row, double seconds);
  void write_line(const step::StepReport& report, double seconds, const Utilisation& use);
  void explain(const Utilisation& use);
  void print_digest() const;
  void finish_input() const;
  void finish_guard() const;
  void finish_memory() const;
  void finish_best() const;

  Attempt& attempt_;
  RunFiles& files_;
  const Feed& feed_;
  SlowRanks& slow_ranks_;
  ConsoleWindow window_;
  base::ProcessMemory memory_;  // as it was lately
  double memory_read_s_ = 0;
  std::optional<double> first_step_s_;  // until a row has it
  bool any_step_ = false, utilisation_explained_ = false;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace train
