#include "train/stops.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>

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

// Rank 0 alone looks, so it must not fail alone: what cannot be looked at now is looked at again in a second, and what
// cannot be removed is told.
bool is_there(const std::string& file) {
  try {
    return io::exists(file);
  } catch (const io::Failure&) {
    return false;
  }
}

void remove(const std::string& file) {
  try {
    io::remove_file(file);
  } catch (const io::Failure& e) {
    base::log::warning("{}; it was carried out: remove it, or it will be once more", e.what());
  }
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
  // On the signal stack: oneDNN 2.6's AVX2 products keep data below the stack pointer, which a handler would overwrite.
  struct sigaction action {};
  action.sa_handler = [](int which) { g_came[size_t(which)] = 1; };
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  for (const auto& [name, number] : kSignals)
    if (std::find(names.begin(), names.end(), name) != names.end())
      sigaction(number, &action, nullptr), g_caught[size_t(number)] = true;
    else if (g_caught[size_t(number)])
      std::signal(number, SIG_DFL);
  // What the parent ignores, as nohup does, stays ignored.
}

base::Exit exit_of(StopReason reason) {
  return reason == StopReason::budget || reason == StopReason::stop_file ? base::Exit::stopped : base::Exit::requeue;
}

Stops::Stops(comm::Comm& world, const LimitOptions& options, const std::string& directory, double begin_s)
    : world_(world),
      options_(options),
      stop_file_(directory + "/stop"),
      save_file_(directory + "/save"),
      margin_s_(options.margin_s) {
  if (world.rank() == 0) old_stop_file_ = is_there(stop_file_);
  if (world.rank() != 0 || options.wall_time == "none") return;
  if (options.wall_time == "auto") {
    job_time_ = std::make_unique<JobTime>();
  } else {
    source_ = "limits.wall_time";
    set_end(begin_s + seconds_of(options.wall_time));
  }
}

void Stops::set_end(double end_s) {
  bool first = end_s_ == 0;
  end_s_ = end_s;
  double left = std::max(0.0, end_s_ - base::now_s());
  // A short job must not spend its whole time in the margin, and come back for ever.
  if (!first || margin_s_ <= left / 4) return;
  margin_s_ = left / 4;
  base::log::warning(
      "limits.margin_s = {:.6g} is more than a quarter of the {:.0f} s that this job has: only {:.0f} s are kept free. "
      "Give the job more time, or set a smaller margin_s that one step and one save surely fit beside",
      options_.margin_s, left, margin_s_);
}

// What the scheduler has said since the last look.
void Stops::hear(const JobTime::Answer& answer) {
  if (answer.number == heard_) return;
  bool first = heard_ == 0;
  heard_ = answer.number, source_ = answer.source;
  if (answer.end_s > 0) {
    constexpr double kSame_s = 10;  // clocks, and answers in whole seconds or minutes
    if (end_s_ > 0 && std::abs(answer.end_s - end_s_) > kSame_s)
      base::log::line("limits   wall time: {} left now, not {} ({} has changed the limit)",
                      base::hms(answer.end_s - base::now_s()), base::hms(end_s_ - base::now_s()), source_);
    if (end_s_ == 0 || std::abs(answer.end_s - end_s_) > kSame_s) set_end(answer.end_s);
  } else if (first && !source_.empty()) {
    base::log::warning(
        "limits.wall_time = \"auto\": {} {} how long this job may run; until it does only a signal, or the deck's own "
        "checkpoints, will save it: set limits.wall_time",
        source_, answer.in_time ? "does not tell" : "does not answer when asked");
  }
}

std::string Stops::describe() {
  if (job_time_) hear(job_time_->first(5));
  std::string out;
  if (end_s_ > 0)
    out += fmt::format("wall time: {} left ({}), stops early for margin {:.0f} s{} + step + save; ",
                       base::hms(end_s_ - base::now_s()), source_, margin_s_,
                       margin_s_ < options_.margin_s ? fmt::format(" (not {:.6g} s: a quarter of the time)", options_.margin_s) : "");
  if (job_time_ && heard_ == 0) out += "wall time: the scheduler was asked and has not answered yet; ";
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
  if (job_time_) hear(job_time_->latest());
  double now = base::now_s(), left = end_s_ - now;
  if (end_s_ > 0 && left < margin_s_ + outlook.step_s + outlook.save_s)
    see(StopReason::wall_time, fmt::format("wall time: {:.0f} s left; margin {:.0f} s + step {:.1f} s + save {:.1f} s",
                                           left, margin_s_, outlook.step_s, outlook.save_s));
  if (options_.core_hours > 0 && outlook.core_hours >= options_.core_hours)
    see(StopReason::budget, fmt::format("budget: {:.4f} of {:.6g} core hours are spent (limits.core_hours)",
                                        outlook.core_hours, options_.core_hours));
  if (now - looked_s_ >= kLook_s) {
    looked_s_ = now;
    if (!old_stop_file_ && is_there(stop_file_)) see(StopReason::stop_file, fmt::format("file {}", stop_file_));
    // One that a save under way is for, or that could not be carried out, is not seen again until a save succeeds.
    save_wanted_ = save_wanted_ || is_there(save_file_);
    if (save_wanted_ && !being_saved_) see(StopReason::save_file, fmt::format("file {}", save_file_));
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

void Stops::save_begins() {
  if (seen_ == StopReason::save_file) seen_ = StopReason::none;
  being_saved_ = save_wanted_;
}

void Stops::save_committed() {
  if (being_saved_) remove(save_file_);
  if (being_saved_) save_wanted_ = being_saved_ = false;
}

void Stops::done(StopReason reason) {
  if (world_.rank() == 0 && reason == StopReason::stop_file) remove(stop_file_);
}

}  // namespace train
