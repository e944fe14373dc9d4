// SPDX-License-Identifier: Apache-2.0
// Saves beside training (design 3.13). begin() copies this rank's parts to host memory and returns.
// A thread of each rank then creates, writes, reads back and commits the file, phase by phase.
// Between two phases all ranks agree, in poll() on the main thread, that every rank has finished
// the first. Only the main thread calls MPI, so a thread never blocks in MPI. Training waits for
// the disk only if a save is due while the one before is still pending.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/options.hpp"
#include "checkpoint/save.hpp"
#include "comm/worker.hpp"

namespace checkpoint {

struct Saved {
  int64_t step = 0;
  std::string file;    // name in the checkpoints directory: "0000001000.h5"
  int64_t bytes = 0;   // of the file
  double seconds = 0;  // from begin() until it was durable
  double held_s = 0;   // the part of `seconds` in which the main thread waited
  bool best = false;   // true if the file has the best value, and so also the name best.h5
  std::string error;   // "" if committed; else the reason, and which older checkpoints remain
  base::Exit code = base::Exit::finished;  // exit code of the error
  int failed_rank = 0;                     // the first rank that failed
};

class Saver {
 public:
  // All ranks share `directory`. If it is removed, the next save creates it again. `options` gives
  // async, staging_mb and the retention; it must outlive the saver.
  Saver(comm::Comm& comm, std::string directory, const CheckpointOptions& options);
  ~Saver();  // waits for this rank's thread only, for no other rank

  // Allocates the host memory for copies of such a state and returns its bytes per rank. Returns 0
  // if saving holds the main thread until the file is durable: with checkpoint.async = false, or if
  // some rank needs more than staging_mb. All ranks must call.
  int64_t stage(const State& state);
  // All ranks call. Returns the bytes of a file of such a state. Later saves of it begin sooner.
  int64_t plan(const State& state);

  // Declares the step that the run continues from (-1: from the beginning). Files of later steps
  // that this saver did not write belong to an abandoned history; the next commit moves them away.
  // Default: the step of the first save.
  void continue_from(int64_t step) {
    history_.since = step;
    history_.own.clear();
  }
  // True if a file of this step belongs to this run's own history, not to an abandoned one. Known
  // at rank 0 only.
  bool of_this_past(int64_t step) const {
    return !history_.since || step <= *history_.since || history_.own.contains(step);
  }

  // Sets the bytes that a save must leave free on the file system. A save that would leave less is
  // refused.
  void keep_free(int64_t bytes) { keep_free_ = bytes; }

  // All ranks call, with the same step and no save pending. `best_step` has the best value so far
  // (-1 = none). If its file is this one or still exists, it also gets the name best.h5.
  void begin(const State& state, int64_t best_step = -1);
  bool pending() const { return pending_.save != nullptr; }
  // All ranks call, any number of times, while a save is pending. Returns the result once the save
  // is committed or has failed.
  std::optional<Saved> poll() { return advance(!pending_.staged); }
  // All ranks call. Waits for the pending save.
  Saved finish() { return *advance(true); }

 private:
  enum class Phase { create, write, verify, commit };
  // Host memory for this rank's parts.
  struct Copies {
    std::optional<device::HostBuffer> staging;
    device::HostBuffer bounce;  // copy for one save of device memory, if staging is off
    std::future<void> touched;  // touches all pages of staging during the first steps
    int64_t staging_bytes = 0;
  };
  // The save that is under way; `save` is null if there is none.
  struct Pending {
    bool staged = false;  // the save reads the copy in staging
    State state;          // its parts point into the copy if there is one
    std::unique_ptr<Save> save;
    Phase phase = Phase::create;
    Saved result;
    int64_t best_step = -1;
    double begin_s = 0;
  };
  // The steps whose files belong to this run (continue_from).
  struct History {
    std::optional<int64_t> since;
    std::set<int64_t> own;  // steps that this saver has written
  };
  std::optional<Saved> advance(bool wait);
  void next(const std::vector<std::string>& results);
  void commit(const std::vector<std::string>& hashes);
  void name_best();
  std::string what_is_left() const;
  void copy_parts(char* to);

  comm::Comm& comm_;
  std::string directory_;
  const CheckpointOptions& options_;
  Copies copies_;
  Pending pending_;
  KnownPlaces known_;  // on rank 0
  int64_t keep_free_ = 0;
  History history_;
  comm::Worker worker_;  // is destroyed first, because its work uses the other members
};

// Begins and finishes a save from the state's own memory. On an error all ranks throw the same one,
// with Exit::checkpoint.
Saved save(comm::Comm& comm, const std::string& directory, const State& state,
           CheckpointOptions options);

}  // namespace checkpoint
