// SPDX-License-Identifier: Apache-2.0
#include "job/stops.hpp"

#include <algorithm>
#include <array>
#include <csignal>

#include "base/log.hpp"
#include "base/text.hpp"
#include "io/files.hpp"
#include "job/call_check.hpp"

namespace job {
namespace {

// A flag per signal, because SIGCONT comes with every SIGTERM and must not hide it. The log also
// names the signal.
std::array<volatile std::sig_atomic_t, 65> g_received{};
std::array<bool, 65> g_caught{};  // catch_stop_signals has installed a handler

const std::vector<std::pair<std::string, int>> kSignals = {
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"INT", SIGINT}, {"HUP", SIGHUP}};

// Pause between two looks for files, which may be on a shared file system.
constexpr double kLookAtFiles_s = 1;

// Only rank 0 looks for files, so it must not fail alone. A failed look is repeated a second later;
// a file that cannot be removed is logged.
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
    base::log::warning(
        "{}; the request of this file was carried out: remove the file, or the request is carried "
        "out again",
        e.what());
  }
}

}  // namespace

void LimitOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("wall_time", wall_time,
        "time this job has: \"auto\" = what SLURM or PBS grants, \"23:30:00\" from the start of "
        "the program, or \"none\"; the run stops in time with a checkpoint and exit 75, or with "
        "exit 8 if it completed no further step and no missing evaluation")
      .on_resume(may)
      .check([this]() -> std::string {
        if (wall_time == "auto" || wall_time == "none" || seconds_of(wall_time) > 0) return "";
        return fmt::format(
            "\"{}\" is not \"auto\", \"none\" or hours:minutes:seconds, for example \"23:30:00\"",
            wall_time);
      });
  t.key("margin_s", margin_s,
        "time kept free at the end of wall_time, beyond the measured time of a step and a save; at "
        "most a quarter of the time that is left at the start")
      .min(0)
      .unit("s")
      .on_resume(may);
  t.key("signals", signals,
        "any of these signals, at any one rank, stops the run with a checkpoint and exit 75. "
        "mpirun passes USR1 on; TERM, INT and HUP make it kill its ranks within 2 s, so job "
        "scripts send USR1. A closed ssh sends HUP: start mpirun in tmux or with setsid, because "
        "mpirun ignores nohup; without mpirun, a HUP that nohup ignores stays ignored")
      .one_of({"USR1", "USR2", "TERM", "INT", "HUP"})
      .on_resume(may);
  t.key("core_hours", core_hours,
        "budget over all attempts; once spent, the run ends with a checkpoint and exit 8; 0 = none")
      .min(0)
      .unit("h")
      .on_resume(may);
  t.key("min_free_gb", min_free_gb,
        "free space that must be left on the file system of run.dir after a save; with less no "
        "checkpoint is written")
      .min(0)
      .unit("GiB")
      .on_resume(may);
}

void catch_stop_signals(const std::vector<std::string>& names) {
  // The handler runs on the signal stack. oneDNN 2.6's AVX2 products keep data below the stack
  // pointer, which a handler on the thread's stack would overwrite.
  struct sigaction action {};
  action.sa_handler = [](int which) { g_received[size_t(which)] = 1; };
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  auto ignored = [](int number) {
    struct sigaction now {};
    return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
  };
  for (const auto& [name, number] : kSignals)
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      if (g_caught[size_t(number)]) std::signal(number, SIG_DFL);
    } else if (number != SIGHUP || !ignored(number)) {
      sigaction(number, &action, nullptr);
      g_caught[size_t(number)] = true;
    }
}

base::Exit exit_of(StopReason reason, bool gained, bool half_over) {
  switch (reason) {
    case StopReason::observer:
    case StopReason::budget:
    case StopReason::stop_file:
      return base::Exit::stopped;
    case StopReason::wall_time:
      return gained ? base::Exit::requeue : base::Exit::stopped;
    case StopReason::signal:
      return gained || !half_over ? base::Exit::requeue : base::Exit::stopped;
    default:
      return base::Exit::requeue;
  }
}

Stops::Stops(comm::Comm& world, const LimitOptions& options, const std::string& directory,
             double begin_s, Outside outside)
    : world_(world),
      options_(options),
      files_{.stop = directory.empty() ? "" : directory + "/stop",
             .save = directory.empty() ? "" : directory + "/save"},
      now_s_(outside.now_s) {
  if (world.rank() != 0) return;
  files_.old_stop = is_there(files_.stop);
  time_limit_ =
      std::make_unique<TimeLimit>(options.wall_time, options.margin_s, begin_s, std::move(outside));
}

std::string Stops::describe() {
  std::string out = time_limit_ ? time_limit_->describe() : "";
  if (options_.core_hours > 0)
    out += fmt::format("budget {:.6g} core hours; ", options_.core_hours);
  if (!options_.signals.empty())
    out += fmt::format("signals {}; ", base::join(options_.signals, " "));
  return out + fmt::format("files {} {}", files_.stop, files_.save);
}

std::string Stops::way_out(const Outlook& outlook) const {
  if (!time_limit_) return "";
  return "this attempt gained nothing, and another one of this length would not either: " +
         time_limit_->needed(outlook.step_s, outlook.save_s);
}

void Stops::ask(StopReason reason, const std::string& text) {
  if (reason <= seen_.reason) return;
  seen_.reason = reason;
  seen_.text = text;
}

// Returns the most important reason that this rank knows.
StopReason Stops::look(const Outlook& outlook) {
  for (const auto& [name, number] : kSignals)
    if (g_received[size_t(number)] &&
        std::find(options_.signals.begin(), options_.signals.end(), name) != options_.signals.end())
      ask(StopReason::signal, fmt::format("signal {} at rank {}", name, world_.rank()));
  if (world_.rank() != 0) return seen_.reason;
  if (save_timer_.every_s > 0 && now_s_() - save_timer_.last_s >= save_timer_.every_s)
    ask(StopReason::save_time, "checkpoint.every_s");
  time_limit_->update();
  if (std::string over = time_limit_->over(outlook.step_s, outlook.save_s); !over.empty())
    ask(StopReason::wall_time, over);
  if (options_.core_hours > 0 && outlook.core_hours >= options_.core_hours)
    ask(StopReason::budget,
        fmt::format("budget: {:.4f} of {:.6g} core hours are spent (limits.core_hours)",
                    outlook.core_hours, options_.core_hours));
  if (const double now = now_s_(); now - files_.looked_s >= kLookAtFiles_s) {
    files_.looked_s = now;
    if (!files_.old_stop && is_there(files_.stop))
      ask(StopReason::stop_file, fmt::format("file {}", files_.stop));
    // A RUN/save that a pending save serves, or whose save failed, counts again only after a save
    // has succeeded.
    files_.save_wanted = files_.save_wanted || is_there(files_.save);
    if (files_.save_wanted && !files_.being_saved)
      ask(StopReason::save_file, fmt::format("file {}", files_.save));
  }
  return seen_.reason;
}

StopReason Stops::agree(const Outlook& outlook) {
  if (agreed_.stop > StopReason::save_file) return agreed_.stop;
  StopReason mine = look(outlook);
  bool alike = true;
  StopReason reason = StopReason(world_.max(int64_t(mine), alike));
  if (!alike) refuse_unlike_calls(world_);
  if (reason == StopReason::none) return reason;
  // The log gets the text of the first rank that knows the reason.
  agreed_.text.clear();
  for (const std::string& text : world_.gather_text(mine == reason ? seen_.text : ""))
    if (agreed_.text.empty()) agreed_.text = text;
  agreed_.stop = reason > StopReason::save_file ? reason : StopReason::none;
  if (agreed_.stop != StopReason::none)
    agreed_.half_over = world_.max(time_limit_ && time_limit_->is_half_over() ? 1.0 : 0.0) > 0;
  return reason;
}

void Stops::started(double save_every_s) {
  files_.old_stop = false;
  save_timer_.every_s = save_every_s;
  save_timer_.last_s = now_s_();
}

void Stops::save_begins() {
  save_timer_.last_s = now_s_();
  if (seen_.reason <= StopReason::save_file) seen_.reason = StopReason::none;
  files_.being_saved = files_.save_wanted;
}

void Stops::save_committed() {
  if (files_.being_saved) remove(files_.save);
  if (files_.being_saved) files_.save_wanted = files_.being_saved = false;
}

void Stops::done(StopReason reason) {
  if (world_.rank() == 0 && reason == StopReason::stop_file) remove(files_.stop);
}

}  // namespace job
