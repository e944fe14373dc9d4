// SPDX-License-Identifier: Apache-2.0
// Watches for a rank that makes the others wait. Each rank adds up its waits over a window of
// steps. At the window's end the ranks gather these sums in one small exchange, and rank 0 judges
// them (records/slow_rank.hpp). Windows grow to about 10 s, so that they cost next to nothing.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/lost_time.hpp"
#include "records/metric_rows.hpp"
#include "records/slow_rank.hpp"
#include "train/attempt.hpp"

namespace train {

class SlowRanks {
 public:
  explicit SlowRanks(Attempt& attempt) : attempt_(attempt) {}

  // Gathers the hosts of the ranks. Call it when the engine and its threads exist. All ranks
  // call. A job of one rank is not watched.
  void open();
  // Time counts between begin() and the next pause(): steps and saves do, evaluations do not.
  void begin();
  void pause();
  // Adds the wait for the data of a step.
  void add_data(double seconds) { own_.data_s += seconds; }
  // Counts a step. Ends the window if it is complete. All ranks call after the same steps.
  void step_done();
  // Forgets the window that has begun, because the run goes back.
  void drop();
  // Adds to a row of metrics what the windows since the last call have shown.
  void add_to(records::MetricValues& row);

 private:
  // Counts since the start of the process. A window holds the differences of two such counts.
  struct Counts {
    double now_s, wait_s, begin_s, sync_s;
  };
  struct Row {
    double data_mean_s = 0, data_max_s = 0;
    records::SlowVerdict verdict;
  };
  Counts counts() const;
  void start_window();
  void gather();
  void judge_newest();
  void warn(const records::SlowVerdict& verdict);

  Attempt& attempt_;
  size_t ranks_ = 0;  // 0: the job is not watched
  std::optional<host::LostTime> lost_;
  // The window that has begun.
  records::RankWindow own_;
  double counted_s_ = 0, began_s_ = 0;
  int64_t steps_ = 0, length_ = 0, gathered_ = 0;  // gathered_: windows so far
  std::optional<Counts> running_;                  // at begin()
  // What rank 0 knows.
  std::vector<std::string> hosts_;  // by rank
  std::deque<records::Window> windows_;
  std::optional<Row> row_;
  // The next window whose end may warn again, and the pause after that, by rank and phase.
  std::map<std::pair<int, records::SlowPhase>, std::pair<int64_t, int64_t>> warned_;
};

}  // namespace train
