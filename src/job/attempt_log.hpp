// SPDX-License-Identifier: Apache-2.0
// RUN/attempts.jsonl: every start of the program on this run, how it ended, what its time was spent
// on, and on what machine. Rank 0 writes it; one JSON object per line, each with the number of its
// start, from 1:
//
//   {"kind":"begin","start":2,"time":...,"host":"n0113","pid":20417,"ranks":4,"memory_mib":64000}
//       the start of the process, in seconds since 1970
//   {"kind":"facts","start":2,"facts":{"mesh":"2 x 2","library.libmpi":"so.40.30.4",...}}
//   {"kind":"continues","start":2,"attempt":2,"step":8,"from":"checkpoint",
//       "redone":[{"start":1,"steps":3,"seconds":{"training":1.5,...}}]}
//       where it goes on from, its number in the metrics, and the lost work of earlier starts
//   {"kind":"save","start":2,"attempt":2,"step":12,"seconds":{...}}
//       what this process has spent until it begins a save
//   {"kind":"back",...}   like "continues": the run went back to a checkpoint within this process
//   {"kind":"end","start":2,"time":...,"how":"killed","exit":-1,"reason":"...","step":15,
//       "seconds":{...}}
//       written by the process itself, or by the next one from what it finds: the report of a
//       failure, and the flight file of rank 0 with the last sign of life
//
// tools/attempts.py reads it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/waiting.hpp"
#include "job/spent.hpp"

namespace job {

// What a start ran with and on, by name: see train/provenance.hpp.
using Facts = std::map<std::string, std::string>;

// A start of the program, as the file records it. It has many members because each fact in its
// lines has one.
struct StartRecord {
  int64_t number = 0;
  double begin_s = 0, end_s = 0;  // since 1970; 0: not known
  std::string host;
  int64_t pid = 0, ranks = 0, memory_mib = 0;
  std::string how;  // "finished", "stopped", "failed", "killed"; "": no end is recorded
  int exit = -1;    // -1: none
  std::string reason;
  std::optional<int64_t> first_step, last_step;
  std::vector<int64_t> attempts;  // its numbers in the metrics; a rewind begins another one
  Spent spent;                    // until its end, as its process counted
  std::map<std::pair<int64_t, int64_t>, Spent> saves;  // by attempt and step
  Spent redone;                                        // of `spent`: done again by later starts
  int64_t redone_steps = 0;
  Facts facts;

  // Returns `spent` without `redone`, the time of work that was done again.
  Spent kept() const;
};

class AttemptLog {
 public:
  // What is known about the start before this one.
  struct Before {
    std::string report = {};   // text of report.txt; "" = none
    std::string left_by = {};  // text of the lock file; "" = it ended by itself
    double changed_s = 0;      // last change of its files, since 1970
    std::string flight = {};   // the flight file of its rank 0
  };
  // The state that the run goes on from.
  struct From {
    std::string kind;               // "checkpoint", "branch", "init", "random_init"
    int64_t attempt = 0, step = 0;  // of the checkpoint, if it belongs to this run; else 0
    double uptime_s = 0;            // of that attempt when it saved
  };

  // Reads the file. Writes the end of the start before if it is missing, and the begin of this
  // start. begin_s: of this process, since 1970.
  AttemptLog(const std::string& run, const Before& before, double begin_s, const std::string& host,
             int64_t ranks);

  // Finds the lost work of earlier starts. Returns the seconds that they spent after the state
  // `from`. Call it once, before `continues`.
  double goes_on(const From& from);
  // Writes where the run goes on; `attempt`: its number in the metrics.
  void continues(int64_t attempt);
  void saves(int64_t attempt, int64_t step, const Spent& spent);
  // The run went back within this process, whose time until now is `spent`. Returns `spent` with
  // the lost time counted as redone.
  Spent goes_back(const From& from, int64_t attempt, const Spent& spent);
  // Writes what this start runs with.
  void has(const Facts& facts);
  void ends(const std::string& how, int exit, const std::string& reason, int64_t step,
            const Spent& spent);
  // Writes the file again if it was removed.
  void keep();

  const std::vector<StartRecord>& starts() const { return starts_; }
  const StartRecord& own() const { return starts_.back(); }
  // The facts of the newest start before this one that has some; null if there is none.
  const Facts* facts_before() const;
  // Seconds between the end of the start before and the begin of this one; 0 for the first.
  double idle_s() const;
  // Seconds of the lost work of earlier starts that goes_on() found.
  double redone_s() const;

 private:
  struct Redone {
    int64_t start, steps;
    Spent seconds;
  };
  void load(const std::string& text);
  void take(const std::string& line);
  void write(const std::string& line);
  void close_before(const Before& before);
  const StartRecord* start_of(int64_t attempt) const;
  std::vector<Redone> in_vain(const From& from) const;
  std::string line_of(const char* kind, const From& from, int64_t attempt,
                      const std::vector<Redone>& redone) const;

  io::WaitingLines lines_;
  std::string text_;  // of the whole file
  std::vector<StartRecord> starts_;
  From from_;
  std::vector<Redone> redone_;
};

}  // namespace job
