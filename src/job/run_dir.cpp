// SPDX-License-Identifier: Apache-2.0
#include "job/run_dir.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/process_start.hpp"
#include "base/span.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"
#include "job/failure_report.hpp"
#include "job/flight.hpp"
#include "job/hooks.hpp"
#include "job/watchdog.hpp"

namespace job {
namespace {

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string content_of(const io::File& file) {
  std::string text(size_t(file.size()), '\0');
  file.read_at(text.data(), int64_t(text.size()), 0);
  return std::string(base::trim(text));
}

std::string now_text() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S} UTC", fmt::gmtime(std::chrono::system_clock::now()));
}

// Joins the lines of a lock file: "host:pid since TIME, ACTIVITY since TIME".
std::string on_one_line(const std::string& lock) {
  std::string out;
  for (const std::string& line : base::split(lock, '\n'))
    out += fmt::format("{}{}", out.empty() ? "" : ", ", base::trim(line));
  return out;
}

// Returns the last change of a file, in seconds since 1970; 0 if there is none.
double changed_s(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return 0;
  return double(found.st_mtim.tv_sec) + 1e-9 * double(found.st_mtim.tv_nsec);
}

// True if another directory would help, rather than more room on the disk or a repaired one.
bool is_wrong_place(const io::Failure& e) {
  constexpr int kWrong[] = {EACCES, EPERM,  EROFS, ENOENT,      ENOTDIR,
                            EISDIR, EEXIST, ELOOP, ENAMETOOLONG};
  return std::find(std::begin(kWrong), std::end(kWrong), e.number()) != std::end(kWrong);
}

[[noreturn]] void refuse(const io::Failure& e) {
  if (is_wrong_place(e))
    base::fail(base::Exit::config, "run.dir: {}; choose another --dir", e.what());
  base::fail(base::Exit::checkpoint,
             "run.dir: {}; make room there (or repair the file system), or choose another --dir, "
             "and start again",
             e.what());
}

// Directory entries can take a while to reach the other nodes of a network file system.
constexpr double kPatience_s = 10;

// Pauses between two checks of the directory, at rank 0 and at the other ranks, which may be many.
constexpr double kLook_s = 1, kLookOfOthers_s = 30, kWarnAgain_s = 60;

// Reserves room for the report of a failure, because the failure may be a full disk.
void reserve(const RunDirectory& directory) {
  try {
    io::File(directory.spare_report(), io::File::Mode::create)
        .append(std::string(kReportBytes, '\n'));
  } catch (const io::Failure&) {  // a report is then a new file
    io::remove_file(directory.spare_report());
  }
}

}  // namespace

std::string directory_problem(const std::string& dir) {
  // The longest path that the system takes, and room for the names of files below the directory.
  constexpr size_t kLongest = PATH_MAX - 512;
  if (dir.size() > kLongest)
    return fmt::format(
        "the path has {} bytes, and at most {} leave room for the files below it; "
        "choose a shorter one",
        dir.size(), kLongest);
  if (dir.find_first_of("\r\n") != dir.npos)
    return fmt::format(
        "{} holds a line break, which logs and lists of files cannot show; choose "
        "another path",
        base::quoted(dir));
  return "";
}

RunDirectory::RunDirectory(comm::Comm& world, const std::string& path) : path_(path) {
  std::string mine = comm::on_first(world, [&] {
    try {
      take();
    } catch (const io::Failure& e) {
      refuse(e);
    }
    return holder_ + "\n" + content_of(lock_);
  });
  holder_ = mine.substr(0, mine.find('\n'));
  std::string text = mine.substr(holder_.size() + 1);
  comm::together(world, [&] {
    std::string seen = "nothing";
    for (base::Stopwatch waited; world.rank() != 0 && waited.seconds() < kPatience_s;) {
      try {
        // Never on rank 0: when a process closes any descriptor of a file, it loses its locks on
        // the file.
        seen = content_of(io::File(path_ + "/lock", io::File::Mode::read));
        if (seen == text) return;
      } catch (const io::Failure& e) {
        seen = e.what();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (world.rank() != 0)
      base::fail(base::Exit::config,
                 "run.dir: on {}, {} is not the directory that rank 0 made on {} ({}); it must be "
                 "on a file system that all nodes share",
                 host_name(), path_, holder_, seen);
  });
}

void RunDirectory::take() {
  io::make_directories(path_);
  lock_ = io::File(path_ + "/lock", io::File::Mode::update);
  if (!lock(lock_)) {
    std::string by = on_one_line(content_of(lock_));
    base::fail(
        base::Exit::config,
        "run.dir: {} is in use by another job{}; wait for it or stop it, or choose another --dir",
        path_, by.empty() ? "" : ": " + by);
  }
  holder_ = fmt::format("{}:{}", host_name(), ::getpid());
  left_by_ = on_one_line(content_of(lock_));
  for (const char* name : {"/lock", "/metrics.jsonl", "/report.txt", "/logs/rank00000.log"})
    changed_s_ = std::max(changed_s_, changed_s(path_ + name));
  sign();
  for (const std::string& directory : {checkpoints(), logs()}) io::make_directories(directory);
}

// Returns false if another process holds the lock.
bool RunDirectory::lock(io::File& file) const {
  try {
    return file.try_lock();
  } catch (const io::Failure& e) {
    // A file system without locks must not prevent training, but users must know.
    base::log::warning(
        "run.dir: the file system of {} has no locks ({}); make sure yourself that no other job "
        "writes there",
        path_, std::strerror(e.number()));
    return true;
  }
}

// Writes this job's name into the lock file.
void RunDirectory::sign() {
  const std::string text = fmt::format("{} since {}\n", holder_, now_text());
  lock_.truncate(0);
  lock_.write_at(text.data(), int64_t(text.size()), 0);
  activity_offset_ = int64_t(text.size());
  made_ = io::id_of(path_);
}

RunDirectory::Watched RunDirectory::watch(bool now) {
  const bool first = lock_.is_open();  // rank 0
  if (!now && base::now_s() - watched_s_ < (first ? kLook_s : kLookOfOthers_s)) return {};
  watched_s_ = base::now_s();
  Watched watched;
  try {
    if (first) watched.made_again = keep_lock();
    watched.ours = first || is_ours();
  } catch (const io::Failure& e) {  // tried again at the next look
    if (first && base::now_s() - warned_s_ > kWarnAgain_s) {
      base::log::warning(
          "run.dir: {}; until this works, this job cannot check that the directory is still its "
          "own",
          e.what());
      warned_s_ = base::now_s();
    }
    return {};
  }
  if (watched.ours) base::log::keep_files(logs());
  if (watched.ours && attempts_) attempts_->keep();
  return watched;
}

void RunDirectory::begin_attempt(const std::string& report, int ranks) {
  const AttemptLog::Before before{.report = report,
                                  .left_by = left_by_,
                                  .changed_s = changed_s_,
                                  .flight = flight_file(Watchdog::flight_directory(path_), 0)};
  attempts_ = std::make_unique<AttemptLog>(path_, before, base::unix_s(base::process_start_s()),
                                           host_name(), ranks);
}

// Takes the lock again if its file was removed or replaced; returns true if it was. Rank 0 only.
bool RunDirectory::keep_lock() {
  if (lock_.in_place()) return false;
  const bool all = io::id_of(path_) != made_;
  io::make_directories(path_);
  io::File fresh(path_ + "/lock", io::File::Mode::update);
  const std::string found = content_of(fresh);
  // On file systems without locks only the name in the file shows another job.
  if (!lock(fresh) || (!found.empty() && !found.starts_with(holder_ + " "))) {
    lost_ = true;
    set_report_file("");  // the file would be the other job's
    Hooks::lose_directory();
    base::fail(base::Exit::checkpoint,
               "run.dir: {} was removed or replaced while this job wrote to it, and another job "
               "has used it since{}. Two jobs must not write to one directory, so this one ends "
               "without a checkpoint; the other one goes on",
               path_, found.empty() ? "" : ": " + on_one_line(found));
  }
  lock_.truncate(0);  // the old file may exist under another name, which no job holds
  lock_ = std::move(fresh);
  sign();
  for (const std::string& directory : {checkpoints(), logs()}) io::make_directories(directory);
  if (all)
    base::log::warning(
        "run.dir: {} was removed or renamed while this job writes to it. It was made again, and "
        "its lock taken. Its earlier files are gone, checkpoints included; the next save writes a "
        "new checkpoint",
        path_);
  else
    base::log::warning(
        "run.dir: {}/lock was removed or replaced while this job holds it; it was taken again",
        path_);
  return true;
}

// True if rank 0 of this job holds the directory. Never called on rank 0: closing the file would
// release its lock.
bool RunDirectory::is_ours() const {
  return io::exists(path_ + "/lock") &&
         content_of(io::File(path_ + "/lock", io::File::Mode::read)).starts_with(holder_ + " ");
}

void RunDirectory::tell(const std::string& activity) noexcept {
  if (!lock_.is_open()) return;
  try {
    // The text has a fixed length and is written in place, so readers never see two texts mixed or
    // a truncated file.
    const std::string text =
        fmt::format("{:<79}\n", fmt::format("{} since {}", activity, now_text()));
    lock_.write_at(text.data(), int64_t(text.size()), activity_offset_);
  } catch (
      const std::exception&) {  // for example a full disk; only readers of the lock miss the text
  }
}

RunDirectory::~RunDirectory() {
  if (!lock_.is_open()) return;
  try {
    lock_.truncate(0);  // a free lock holds no name
    if (!lost_) io::remove_file(spare_report());
  } catch (const std::exception&) {
  }
}

std::unique_ptr<RunDirectory> open_run_directory(comm::Comm& world, const std::string& path,
                                                 bool only_existing) {
  const base::Span span("open the run directory");
  auto was_used = [&] {
    try {
      return io::exists(path + "/lock") ? std::string("yes") : std::string();
    } catch (const io::Failure& e) {
      refuse(e);
    }
  };
  if (only_existing && (path.empty() || comm::on_first(world, was_used).empty())) return nullptr;
  auto directory = std::make_unique<RunDirectory>(world, path);
  comm::together(world, [&] { base::log::open_files(directory->logs()); });
  const std::string report = directory->report();
  comm::on_first(world, [&] {
    const bool failed = io::exists(report);
    std::string last = failed ? io::read_file(report) : "";
    if (failed && last.empty()) {
      base::log::warning("the previous attempt failed, and could not write why: {} is empty",
                         report);
    } else if (!last.empty()) {
      base::log::line("before   the previous attempt failed: {}", last.substr(0, last.find('\n')));
    } else if (!directory->left_by().empty()) {
      directory->set_after_kill();
      base::log::warning(
          "the previous attempt ({}) ended without a report: it was killed, for example because "
          "memory ran out, its node failed or the job's time was over. Steps after its newest "
          "checkpoint are done again",
          directory->left_by());
    }
    directory->begin_attempt(failed && last.empty() ? "it failed, and could not write why" : last,
                             world.size());
    io::remove_file(report);
    reserve(*directory);
    return std::string();
  });
  set_report_file(report, directory->spare_report());
  Watchdog::use(world, path);
  Hooks::use(path);
  return directory;
}

}  // namespace job
