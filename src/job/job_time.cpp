// SPDX-License-Identifier: Apache-2.0
#include "job/job_time.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "job/command.hpp"

namespace job {
namespace {

// A pause between two queries is kSharePause of the time left, within these limits. A scheduler
// that serves thousands of jobs must not notice the queries, but near the end the answers must be
// recent.
constexpr double kLongestPause_s = 120, kShortestPause_s = 5, kSharePause = 0.1;
constexpr double kStale_s = 600;  // largest age of PBS's resources_used; sites set 10 to 120 s

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// True if a job's name is safe in a shell command. Names come from the environment of the job.
bool plain(const std::string& id) {
  return !id.empty() &&
         id.find_first_not_of(
             "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-[]") == id.npos;
}

// Returns the text after "NAME = " in the output of qstat -f; "" if there is none.
std::string attribute_of(const std::string& output, const std::string& name) {
  for (const std::string& line : base::split(output, '\n'))
    if (std::string_view text = base::trim(line); text.starts_with(name + " = "))
      return std::string(text.substr(name.size() + 3));
  return "";
}

double unix_now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns the seconds since 1970 of local time as qstat prints it: "Mon Nov 23 09:39:46 2026".
// Returns -1 for any other text.
double unix_s_of(const std::string& text) {
  std::tm time{};
  time.tm_isdst = -1;
  const char* end = ::strptime(text.c_str(), "%a %b %d %H:%M:%S %Y", &time);
  return end && !*end ? double(std::mktime(&time)) : -1;
}

}  // namespace

double seconds_of(const std::string& text) {
  double days = 0;
  std::string clock = text;
  if (size_t dash = text.find('-'); dash != text.npos) {
    if (dash == 0 || text.substr(0, dash).find_first_not_of("0123456789") != text.npos) return -1;
    days = std::strtod(text.c_str(), nullptr);
    clock = text.substr(dash + 1);
  }
  double seconds = 0;
  std::vector<std::string> parts = base::split(clock, ':');
  if (parts.size() < 2 || parts.size() > 3) return -1;
  for (const std::string& part : parts) {
    if (part.empty() || part.size() > 6 || part.find_first_not_of("0123456789") != part.npos)
      return -1;
    seconds = 60 * seconds + std::strtod(part.c_str(), nullptr);
  }
  return 86400 * days + seconds;
}

Scheduler::Answer PbsEnd::read(const std::string& output, double now_s, double unix_s) {
  Scheduler::Answer answer;
  answer.source = "pbs";
  const double limit = seconds_of(attribute_of(output, "Resource_List.walltime"));
  if (limit < 0) return answer;
  const double used = seconds_of(attribute_of(output, "resources_used.walltime"));
  if (used > 0) begin_s_ = std::min(begin_s_, now_s - used);
  // A start far earlier than the time used implies means that the job was suspended, or that a
  // clock was put back by an hour. It is ignored.
  const double started = unix_s_of(attribute_of(output, "stime")), since = unix_s - started;
  if (started > 0 && (used < 0 || since <= used + kStale_s))
    begin_s_ = std::min(begin_s_, now_s - since);
  answer.limit_s = limit;
  answer.end_s = begin_s_ + limit;
  return answer;
}

JobTime::JobTime(double patience_s) : patience_s_(patience_s), thread_([this] { work(); }) {}

JobTime::~JobTime() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

JobTime::Answer JobTime::latest() const {
  std::lock_guard lock(mutex_);
  return answer_;
}

JobTime::Answer JobTime::first(double seconds) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [this] { return answer_.number > 0; });
  return answer_;
}

bool JobTime::quits() const {
  std::lock_guard lock(mutex_);
  return quit_;
}

void JobTime::work() {
  const base::ThreadScope scope("end of job");
  for (bool again = false;; again = true) {
    Answer found = ask(again);
    std::unique_lock lock(mutex_);
    found.number = answer_.number + 1;
    answer_ = found;
    changed_.notify_all();
    if (found.source.empty()) return;  // no scheduler runs this job
    double left = found.end_s > 0 ? found.end_s - base::now_s() : kLongestPause_s / kSharePause;
    auto pause = std::chrono::duration<double>(
        std::clamp(kSharePause * left, kShortestPause_s, kLongestPause_s));
    if (changed_.wait_for(lock, pause, [this] { return quit_; })) return;
  }
}

JobTime::Answer JobTime::ask(bool again) {
  Answer answer;
  double left = -1;
  in_time_ = true;
  if (std::string id = variable("SLURM_JOB_ID"), end = variable("SLURM_JOB_END_TIME");
      plain(id) || !end.empty()) {
    answer.source = "slurm";
    if (!again &&
        !end.empty()) {  // right at the start of the job; only newer versions of SLURM set it
      left = std::max(0.0, std::strtod(end.c_str(), nullptr) - unix_now_s());
    } else if (plain(id)) {
      // The last task of an array has the array's own job number, which selects all tasks in
      // squeue.
      std::string array = variable("SLURM_ARRAY_JOB_ID"), task = variable("SLURM_ARRAY_TASK_ID");
      if (plain(array) && plain(task)) id = array + "_" + task;
      left = seconds_of(std::string(base::trim(output_of("squeue -h -j " + id + " -o %L"))));
    }
  } else if (std::string job = variable("PBS_JOBID"); plain(job)) {
    const std::string output = output_of("qstat -f '" + job + "' | tr -d '\\t'");
    answer = pbs_end_.read(output, base::now_s(), unix_now_s());
  }
  answer.in_time = in_time_;
  if (left >= 0) answer.end_s = base::now_s() + left;
  return answer;
}

// Returns the output of a command; "" if it cannot be started or takes too long. A slow command is
// killed with the processes that it has started.
std::string JobTime::output_of(const std::string& command) {
  std::string output;
  const CommandEnd end = run_command(
      {.text = "exec 2> /dev/null; " + command, .limit_s = patience_s_, .grace_s = 0},
      [&output](std::string_view piece) { output += piece; }, [this] { return quits(); });
  if (end.how != CommandEnd::How::late && end.how != CommandEnd::How::quit) return output;
  in_time_ = false;
  return "";
}

}  // namespace job
