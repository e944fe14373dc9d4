#include "train/stops.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "io/files.hpp"

namespace train {
namespace {

// A flag per signal: SIGCONT comes with every SIGTERM and must not hide it, and the log names the one that came.
std::array<volatile std::sig_atomic_t, 65> g_came{};
std::array<bool, 65> g_caught{};  // by catch_stop_signals

const std::vector<std::pair<std::string, int>> kSignals = {
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"INT", SIGINT}, {"HUP", SIGHUP}};

constexpr double kLook_s = 1;  // files on a shared file system are asked for so often

// First line that a command prints, "" if it fails.
std::string first_line_of(const std::string& command) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen((command + " 2>/dev/null").c_str(), "r"), ::pclose);
  char line[256] = "";
  if (!pipe || !std::fgets(line, sizeof line, pipe.get())) return "";
  return std::string(base::trim(line));
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Names come from the environment of the job and go to a shell.
bool plain(const std::string& id) {
  return !id.empty() &&
         id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-[]") == id.npos;
}

// Seconds that the scheduler leaves this job, and who says so; -1: nobody does.
double left_by_scheduler(std::string& source) {
  if (std::string end = variable("SLURM_JOB_END_TIME"); !end.empty()) {
    source = "slurm";
    double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    return std::max(0.0, std::strtod(end.c_str(), nullptr) - now);
  }
  if (std::string id = variable("SLURM_JOB_ID"); plain(id)) {
    source = "slurm";
    // The last task of an array has the array's own number, which squeue takes for all of its tasks.
    std::string array = variable("SLURM_ARRAY_JOB_ID"), task = variable("SLURM_ARRAY_TASK_ID");
    if (plain(array) && plain(task)) id = array + "_" + task;
    return seconds_of(first_line_of("squeue -h -j " + id + " -o %L"));
  }
  if (std::string id = variable("PBS_JOBID"); plain(id)) {
    source = "pbs";
    std::string ask = "qstat -f '" + id + "' | tr -d '\\t'";
    double limit = seconds_of(first_line_of(ask + " | sed -n 's/^ *Resource_List.walltime = //p'"));
    double used = seconds_of(first_line_of(ask + " | sed -n 's/^ *resources_used.walltime = //p'"));
    return limit < 0 ? -1 : std::max(0.0, limit - std::max(0.0, used));
  }
  return -1;
}

}  // namespace

void LimitOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("wall_time", wall_time,
        "time this job has: \"auto\" = what SLURM or PBS grants, \"23:30:00\" from the start of the program, or "
        "\"none\"; the "
        "run stops in time with a checkpoint and exit 75")
      .on_resume(may)
      .check([this]() -> std::string {
        if (wall_time == "auto" || wall_time == "none" || seconds_of(wall_time) > 0) return "";
        return fmt::format("\"{}\" is not \"auto\", \"none\" or hours:minutes:seconds, for example \"23:30:00\"",
                           wall_time);
      });
  t.key("margin_s", margin_s, "kept free at the end of wall_time, beyond the measured time of a step and a save")
      .min(0)
      .unit("s")
      .on_resume(may);
  t.key("signals", signals,
        "each of these, at any one rank, stops the run with a checkpoint and exit 75 (mpirun passes USR1 on, and "
        "answers TERM "
        "by killing: job scripts send USR1)")
      .one_of({"USR1", "USR2", "TERM", "INT", "HUP"})
      .on_resume(may);
  t.key("core_hours", core_hours, "budget over all attempts; spent: a checkpoint and exit 8; 0 = none")
      .min(0)
      .unit("h")
      .on_resume(may);
  t.key("min_free_gb", min_free_gb,
        "free space that must be left on the file system of run.dir after a save; with less no checkpoint is written")
      .min(0)
      .unit("GiB")
      .on_resume(may);
}

void catch_stop_signals(const std::vector<std::string>& names) {
  for (const auto& [name, number] : kSignals)
    if (std::find(names.begin(), names.end(), name) != names.end())
      std::signal(number, [](int which) { g_came[size_t(which)] = 1; }), g_caught[size_t(number)] = true;
    else if (g_caught[size_t(number)])
      std::signal(number, SIG_DFL);
  // What the parent ignores, as nohup does, stays ignored.
}

double seconds_of(const std::string& text) {
  double days = 0;
  std::string clock = text;
  if (size_t dash = text.find('-'); dash != text.npos) {
    if (dash == 0 || text.substr(0, dash).find_first_not_of("0123456789") != text.npos) return -1;
    days = std::strtod(text.c_str(), nullptr), clock = text.substr(dash + 1);
  }
  double seconds = 0;
  std::vector<std::string> parts = base::split(clock, ':');
  if (parts.size() < 2 || parts.size() > 3) return -1;
  for (const std::string& part : parts) {
    if (part.empty() || part.size() > 6 || part.find_first_not_of("0123456789") != part.npos) return -1;
    seconds = 60 * seconds + std::strtod(part.c_str(), nullptr);
  }
  return 86400 * days + seconds;
}

Stops::Stops(comm::Comm& world, const LimitOptions& options, const std::string& directory, double begin_s)
    : world_(world),
      options_(options),
      stop_file_(directory + "/stop"),
      save_file_(directory + "/save"),
      margin_s_(options.margin_s) {
  if (world.rank() != 0 || options.wall_time == "none") return;
  double left = std::max(0.0, begin_s + seconds_of(options.wall_time) - base::now_s());
  if (options.wall_time == "auto") {
    left = left_by_scheduler(source_);
    if (left < 0 && !source_.empty())
      base::log::warning(
          "limits.wall_time = \"auto\": {} does not tell how long this job may run; only a signal, or the deck's own "
          "checkpoints, will save it: set limits.wall_time",
          source_);
  }
  if (left >= 0) end_s_ = base::now_s() + left;
  // A short job must not spend its whole time in the margin, and come back for ever.
  if (left >= 0 && margin_s_ > left / 4) {
    margin_s_ = left / 4;
    base::log::warning("limits.margin_s = {}: of the {:.0f} s that this job has only {:.0f} s are kept free",
                       options.margin_s, left, margin_s_);
  }
  if (source_.empty()) source_ = "limits.wall_time";
}

std::string Stops::describe() const {
  std::string out;
  if (end_s_ > 0)
    out += fmt::format("wall time: {} left ({}), stops early for margin {:.0f} s + step + save; ",
                       base::hms(end_s_ - base::now_s()), source_, margin_s_);
  if (options_.core_hours > 0) out += fmt::format("budget {:.6g} core hours; ", options_.core_hours);
  if (!options_.signals.empty()) out += fmt::format("signals {}; ", base::join(options_.signals, " "));
  return out + fmt::format("files {} {}", stop_file_, save_file_);
}

// What this rank knows.
StopReason Stops::look(const Outlook& outlook) {
  auto see = [&](StopReason reason, const std::string& text) {
    if (reason > seen_) seen_ = reason, seen_text_ = text;
  };
  for (const auto& [name, number] : kSignals)
    if (g_came[size_t(number)] &&
        std::find(options_.signals.begin(), options_.signals.end(), name) != options_.signals.end())
      see(StopReason::signal, fmt::format("signal {} at rank {}", name, world_.rank()));
  if (world_.rank() != 0) return seen_;
  double now = base::now_s(), left = end_s_ - now;
  if (end_s_ > 0 && left < margin_s_ + outlook.step_s + outlook.save_s)
    see(StopReason::wall_time, fmt::format("wall time: {:.0f} s left; margin {:.0f} s + step {:.1f} s + save {:.1f} s",
                                           left, margin_s_, outlook.step_s, outlook.save_s));
  if (options_.core_hours > 0 && outlook.core_hours >= options_.core_hours)
    see(StopReason::budget, fmt::format("budget: {:.4f} of {:.6g} core hours are spent (limits.core_hours)",
                                        outlook.core_hours, options_.core_hours));
  if (now - looked_s_ >= kLook_s) {
    looked_s_ = now;
    if (io::exists(stop_file_)) see(StopReason::stop_file, fmt::format("file {}", stop_file_));
    if (io::exists(save_file_)) see(StopReason::save_file, fmt::format("file {}", save_file_));
  }
  return seen_;
}

StopReason Stops::agree(const Outlook& outlook) {
  if (agreed_ > StopReason::save_file) return agreed_;
  StopReason mine = look(outlook);
  StopReason reason = StopReason(world_.max(int64_t(mine)));
  if (reason == StopReason::none) return reason;
  // The first rank that knows the reason tells it.
  text_.clear();
  for (const std::string& text : world_.gather_text(mine == reason ? seen_text_ : ""))
    if (text_.empty()) text_ = text;
  agreed_ = reason > StopReason::save_file ? reason : StopReason::none;
  return reason;
}

void Stops::clear(StopReason reason) {
  if (world_.rank() == 0) {
    if (reason == StopReason::save_file) io::remove_file(save_file_);
    if (reason == StopReason::stop_file) io::remove_file(stop_file_);
  }
  if (seen_ == StopReason::save_file && reason == seen_) seen_ = StopReason::none;
}

}  // namespace train
