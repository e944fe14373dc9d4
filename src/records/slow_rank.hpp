// SPDX-License-Identifier: Apache-2.0
// Finds the rank that makes the others wait.
//
// Ranks meet in each exchange, so all of them take the same time for a window of steps, and the
// rank that works longest waits least. The verdict compares these waits. It compares no clocks of
// different machines, and it asks no clock itself.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace records {

// The times of one rank in a window of steps, in seconds. A comment says which of them are not part
// of the main thread's time.
struct RankWindow {
  double wait_s = 0;     // waits in exchanges and agreements
  double data_s = 0;     // waits for data and prepares inputs
  double begin_s = 0;    // begins exchanges
  double sync_s = 0;     // syncs files
  double longest_s = 0;  // the longest sync of a file, by any thread
  double stolen_s = 0;   // ready to run, but the CPU ran something else
  double memory_s = 0;   // stalled for memory, on any thread
  static constexpr int64_t kValues = 7;
};

struct Window {
  int64_t steps = 0;                // at least 1
  double seconds = 0;               // of all its steps, at the slowest clock
  std::vector<RankWindow> of_rank;  // by rank
};

enum class SlowPhase { none, input, computing, exchange, saving, machine };
inline constexpr std::pair<const char*, SlowPhase> kSlowPhaseNames[] = {
    {"none", SlowPhase::none},           {"input", SlowPhase::input},
    {"computing", SlowPhase::computing}, {"exchange", SlowPhase::exchange},
    {"saving", SlowPhase::saving},       {"machine", SlowPhase::machine}};

struct SlowVerdict {
  SlowPhase phase = SlowPhase::none;
  int rank = -1;         // -1: nobody, or all ranks alike
  std::string host;      // of the rank; "" without one
  int also = 0;          // further ranks of this host that are slow, too
  bool chronic = false;  // it was slow in most of the newest windows; false: once
  double step_s = 0;     // mean time of a step in the window
  double without_s = 0;  // estimate without this rank and its host's other slow ranks
};

// The windows that judge() looks at; older ones change nothing.
inline constexpr size_t kWindowsJudged = 24;

// Judges the newest window. `windows`: the newest ones, oldest first, all of the same ranks.
// `hosts`: by rank. Nobody is slow without windows.
SlowVerdict judge(std::span<const Window> windows, std::span<const std::string> hosts);

}  // namespace records
