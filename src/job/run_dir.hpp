// SPDX-License-Identifier: Apache-2.0
// The run directory: made with its parents and sub-directories, and locked: one running job per
// directory. The lock is the operating system's (fcntl, which network file systems pass on), so a
// dead job leaves none behind. What the file says, for people and tools/status: who holds it, and
// what that job is doing; a job that ends by itself empties it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/comm.hpp"
#include "io/files.hpp"

namespace job {

class RunDirectory {
 public:
  // All ranks call. The same Error on all of them if the directory cannot be made, another job
  // holds the lock (it names host, process and since when), or a rank does not see the directory
  // that rank 0 made: Exit::config where the deck names a wrong place, Exit::checkpoint where the
  // disk is to blame. The lock is held until the object goes, by rank 0.
  RunDirectory(comm::Comm& world, const std::string& path);
  ~RunDirectory();

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string logs() const { return path_ + "/logs"; }
  const std::string& holder() const { return holder_; }  // "gpu0113:20417", this job's rank 0
  // What the lock still said of the job before (rank 0): it ended without emptying it. "" if it
  // did, or there was none.
  const std::string& left_by() const { return left_by_; }
  // Whether the attempt before was killed: it neither ended by itself nor left a report. Known at
  // rank 0.
  bool after_kill() const { return after_kill_; }
  void set_after_kill() { after_kill_ = true; }
  struct Watched {
    bool ours = false;        // it was looked at, and is this job's
    bool made_again = false;  // it was gone
  };
  // Looks whether the directory still is this job's, `now` or if the last look was a while ago.
  // Rank 0 makes a directory or lock that was removed again, with a warning. Error at rank 0,
  // Exit::checkpoint, if another job has taken the directory meanwhile: this job must write nothing
  // more to it, and lost() is true.
  Watched watch(bool now);
  bool lost() const { return lost_; }
  // What this job is doing from now on, for those who look into the lock: "evaluate step=120". Only
  // rank 0 writes it.
  void tell(const std::string& activity) noexcept;

 private:
  void take();  // rank 0
  bool lock(const io::File& file) const;
  void sign();
  bool keep_lock();
  bool is_ours() const;
  std::string path_, holder_, left_by_;
  io::File lock_;
  std::optional<io::FileId> made_;  // the directory that the lock was taken in
  bool after_kill_ = false, lost_ = false;
  double watched_s_ = 0, warned_s_ = 0;
  int64_t told_at_ = 0;  // where the activity stands in the file
};

// All ranks: makes the directory, or takes it, for this attempt at the run: the log goes there,
// what the report of the attempt before says goes to the log, and report.txt is this attempt's.
// With `only_existing` a directory that no run was in yet is not made: the result is nullptr,
// because what is refused must create nothing.
std::unique_ptr<RunDirectory> open_run_directory(comm::Comm& world, const std::string& path,
                                                 bool only_existing);

}  // namespace job
