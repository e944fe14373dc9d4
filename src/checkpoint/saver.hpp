// SPDX-License-Identifier: Apache-2.0
// Saving beside training (design 3.13). begin() copies this rank's parts to host memory and
// returns; a thread of each rank makes, writes, reads back and commits the file, phase by phase,
// while training goes on. Between two phases all ranks agree that everybody is done, in poll(), on
// the main thread, which alone calls MPI; so saving never blocks on MPI in a thread, and training
// never waits for a disk unless a save is due while the one before is still under way.
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
  std::string file;    // in the checkpoints directory: "0000001000.h5"
  int64_t bytes = 0;   // of the file
  double seconds = 0;  // from begin() until it was durable
  double held_s = 0;   // of it, the main thread was held
  bool best = false;   // it is the one with the best value, and has the name best.h5 as well
  std::string error;   // "" = committed; else why not, and what the run can go on from
  base::Exit code = base::Exit::finished;  // of the error
  int failed_rank = 0;                     // the first one
};

class Saver {
 public:
  // `directory` is shared by all ranks; one that is removed is made again by the next save.
  // options: async, staging_mb, retention; must outlive the saver.
  Saver(comm::Comm& comm, std::string directory, const CheckpointOptions& options);
  ~Saver();  // waits for what this rank's thread is doing, for no other rank

  // Bytes of host memory per rank that a state of this kind is copied to; 0 if saving holds the
  // main thread until the file is durable (checkpoint.async = false, or more than staging_mb on
  // some rank: all ranks must call).
  int64_t stage(const State& state);
  // All ranks: bytes of a file of such a state. Saves of it begin sooner when it has been called.
  int64_t plan(const State& state);

  // The run goes on from this step (-1: from the beginning, none): files of later steps, by others
  // than this saver, belong to another past and are put aside by the next commit. Default: the step
  // of the first save.
  void continue_from(int64_t step) {
    since_ = step;
    own_.clear();
  }
  // Whether a file of this step is of this run's past, and not of one that it went back from. Known
  // at rank 0.
  bool of_this_past(int64_t step) const {
    return !since_ || step <= *since_ || own_.contains(step);
  }

  // Free space that must be left on the file system after a save; with less none is written.
  void keep_free(int64_t bytes) { keep_free_ = bytes; }

  // All ranks, with the same step, with no save under way. `best_step`: with the best value so far,
  // -1 = nobody counts; the file of that step, if it is this one or still there, gets the name
  // best.h5 as well.
  void begin(const State& state, int64_t best_step = -1);
  bool pending() const { return save_ != nullptr; }
  // All ranks, with a save under way, as often as they like: the result once it is committed or has
  // failed.
  std::optional<Saved> poll() { return advance(!staged_); }
  // All ranks: waits for the save under way.
  Saved finish() { return *advance(true); }

 private:
  enum class Phase { create, write, verify, commit };
  std::optional<Saved> advance(bool wait);
  void next(const std::vector<std::string>& results);
  void commit(const std::vector<std::string>& hashes);
  void name_best();
  std::string what_is_left() const;
  void copy_parts(char* to);

  comm::Comm& comm_;
  std::string directory_;
  const CheckpointOptions& options_;
  std::optional<device::HostBuffer> staging_;
  // of one save: for what lies on a device, if there is no room to stage it
  device::HostBuffer bounce_;
  std::future<void> touched_;  // its pages are there: before the first save, beside the first steps
  int64_t staging_bytes_ = 0;
  bool staged_ = false;  // the save under way reads the copy in staging_
  State state_;          // of the save under way; its parts lie in the copy if there is one
  std::unique_ptr<Save> save_;
  Phase phase_ = Phase::create;
  Saved saved_;
  KnownPlaces known_;  // rank 0
  int64_t keep_free_ = 0, best_step_ = -1;
  std::optional<int64_t> since_;
  std::set<int64_t> own_;  // steps that this saver has written
  double begin_s_ = 0;
  comm::Worker worker_;
};

// begin and finish in one, from the state's own memory. On an error all ranks throw the same one,
// with Exit::checkpoint.
Saved save(comm::Comm& comm, const std::string& directory, const State& state,
           CheckpointOptions options);

}  // namespace checkpoint
