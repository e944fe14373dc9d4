// SPDX-License-Identifier: Apache-2.0
// The run directory: made with its parents and sub-directories, and locked for one running job. The
// operating system holds the lock (fcntl, which network file systems support), so a dead job leaves
// none behind. People and tools/status read in the lock file which job holds it and what that job
// is doing. A job that ends by itself empties the file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/comm.hpp"
#include "io/files.hpp"
#include "job/attempt_log.hpp"

namespace job {

// Returns why a path cannot be a run directory; "" if it can.
std::string directory_problem(const std::string& dir);

class RunDirectory {
 public:
  // All ranks call, and all throw the same Error. Its causes: the directory cannot be made; another
  // job holds the lock (named with host, process and start); a rank does not see rank 0's
  // directory. The code is Exit::config if the deck names a wrong place, Exit::checkpoint if the
  // disk is to blame. Rank 0 holds the lock until the object is destroyed.
  RunDirectory(comm::Comm& world, const std::string& path);
  ~RunDirectory();

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string logs() const { return path_ + "/logs"; }
  std::string report() const { return path_ + "/report.txt"; }
  std::string spare_report() const { return logs() + "/report.spare"; }
  const std::string& holder() const { return holder_; }  // "gpu0113:20417", this job's rank 0
  // Returns the text that an earlier job left in the lock file because it ended without emptying
  // the file (rank 0); "" if there is none.
  const std::string& left_by() const { return left_by_; }
  // True if the attempt before was killed: it neither ended by itself nor left a report. Known at
  // rank 0.
  bool after_kill() const { return after_kill_; }
  void set_after_kill() { after_kill_ = true; }
  // The log of all starts of the program; null on all ranks but 0.
  AttemptLog* attempts() const { return attempts_.get(); }
  // Begins the log of this start. `report`: what the start before left. Rank 0.
  void begin_attempt(const std::string& report, int ranks);
  struct Watched {
    bool ours = false;        // the directory was checked and is this job's
    bool made_again = false;  // the directory or lock was missing
  };
  // Checks that the directory still is this job's, always if `now`, otherwise if the last check was
  // a while ago. Rank 0 makes a removed directory or lock again, with a warning.
  // Error(Exit::checkpoint) at rank 0 if another job has taken the directory meanwhile. This job
  // must then write nothing more to it, and lost() is true.
  Watched watch(bool now);
  bool lost() const { return lost_; }
  // Writes the job's current activity ("evaluate step=120") to the lock file for its readers. Only
  // rank 0 writes it.
  void tell(const std::string& activity) noexcept;

 private:
  void take();  // rank 0
  bool lock(io::File& file) const;
  void sign();
  bool keep_lock();
  bool is_ours() const;
  std::string path_, holder_, left_by_;
  io::File lock_;
  std::unique_ptr<AttemptLog> attempts_;
  double changed_s_ = 0;            // last change of an earlier job's files, since 1970
  std::optional<io::FileId> made_;  // the directory in which the lock was taken
  bool after_kill_ = false, lost_ = false;
  double watched_s_ = 0, warned_s_ = 0;
  int64_t activity_offset_ = 0;  // offset of the activity in the file
};

// Makes or takes the directory for this attempt at the run. All ranks call. From then on the log
// and report.txt go there; the report of the attempt before is copied to the log. With
// `only_existing` a directory without a run is not made and the result is nullptr, because a
// refused run must create nothing.
std::unique_ptr<RunDirectory> open_run_directory(comm::Comm& world, const std::string& path,
                                                 bool only_existing);

}  // namespace job
