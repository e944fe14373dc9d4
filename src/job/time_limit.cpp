// SPDX-License-Identifier: Apache-2.0
#include "job/time_limit.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"

namespace job {
namespace {

// Smaller differences come from clocks, or from schedulers that answer in seconds or minutes.
constexpr double kSame_s = 10;
constexpr double kFirstAnswer_s = 5;  // longest wait of describe() for the scheduler

// Returns seconds, rounded up to 10 s, as "00:02:20", the form of limits.wall_time and of job
// scripts.
std::string clock_text(double seconds) {
  const int64_t s = 10 * int64_t(std::ceil(seconds / 10));
  return fmt::format("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

TimeLimit::TimeLimit(const std::string& wall_time, double margin_s, double begin_s, Outside outside)
    : deck_margin_s_(margin_s),
      begin_s_(begin_s),
      outside_(std::move(outside)),
      margin_s_(margin_s) {
  if (wall_time == "none") return;
  if (wall_time == "auto") {
    scheduler_ = outside_.ask();
    return;
  }
  source_ = "limits.wall_time";
  limit_s_ = seconds_of(wall_time);
  set_end(begin_s + limit_s_);
}

void TimeLimit::update() {
  if (scheduler_) take(scheduler_->latest());
}

void TimeLimit::set_end(double end_s) {
  const bool first = end_s_ == 0;
  end_s_ = end_s;
  const double left = std::max(0.0, left_s());
  // The margin is at most a quarter of the time, so a short job does not spend its whole time in
  // it. A margin that was cut grows again when the limit grows.
  if (!first) {
    margin_s_ = std::clamp(left / 4, margin_s_, deck_margin_s_);
  } else if (margin_s_ > left / 4) {
    margin_s_ = left / 4;
    base::log::warning(
        "limits.margin_s = {:.6g} is more than a quarter of the {:.0f} s that this job has: only "
        "{:.0f} s are kept free. Give the job more time, or set a smaller margin_s that leaves "
        "time for a step and a save",
        deck_margin_s_, left, margin_s_);
  }
}

bool TimeLimit::is_changed(const Scheduler::Answer& answer) const {
  if (answer.limit_s > 0 && limit_s_ > 0) return answer.limit_s != limit_s_;
  return std::abs(answer.end_s - end_s_) > kSame_s;
}

void TimeLimit::take(const Scheduler::Answer& answer) {
  if (answer.number == last_answer_) return;
  const bool first = last_answer_ == 0;
  last_answer_ = answer.number;
  source_ = answer.source;
  if (answer.end_s <= 0) {
    if (first && !source_.empty())
      base::log::warning(
          "limits.wall_time = \"auto\": {} {} how long this job may run; until it does, only a "
          "signal or the checkpoints of the deck (checkpoint.every*) save the run: set "
          "limits.wall_time",
          source_, answer.in_time ? "does not tell" : "does not answer when asked");
    return;
  }
  if (end_s_ == 0) {
    set_end(answer.end_s);
  } else if (is_changed(answer)) {
    base::log::line("limits   wall time: {} left now, not {} ({} has changed the limit)",
                    base::hms(std::max(0.0, answer.end_s - outside_.now_s())),
                    base::hms(std::max(0.0, left_s())), source_);
    set_end(answer.end_s);
  } else {
    end_s_ = std::min(end_s_, answer.end_s);  // never later while the limit is unchanged
  }
  limit_s_ = answer.limit_s;
}

std::string TimeLimit::margin_text() const {
  return fmt::format("margin {:.0f} s{}", margin_s_,
                     margin_s_ < deck_margin_s_
                         ? fmt::format(" (not {:.6g} s: a quarter of the time)", deck_margin_s_)
                         : "");
}

std::string TimeLimit::over(double step_s, double save_s) const {
  if (end_s_ == 0 || left_s() >= margin_s_ + step_s + save_s) return "";
  return fmt::format("wall time: {:.0f} s left; {} + step {:.1f} s + save {:.1f} s",
                     std::max(0.0, left_s()), margin_text(), step_s, save_s);
}

bool TimeLimit::is_half_over() const {
  return end_s_ > 0 && left_s() < outside_.now_s() - start_s();
}

std::string TimeLimit::needed(double step_s, double save_s) const {
  const double spent_s = outside_.now_s() - start_s(), work_s = spent_s + step_s + save_s;
  // The margin may take a quarter of the time, which leaves three quarters for work.
  const double cut_margin_s = std::min(deck_margin_s_, work_s / 3);
  std::string text = fmt::format(
      "give the job at least {} ({:.0f} s were spent without a step, + step {:.1f} s + save {:.1f} "
      "s + margin {:.0f} s)",
      clock_text(work_s + cut_margin_s), spent_s, step_s, save_s, cut_margin_s);
  if (cut_margin_s < deck_margin_s_)
    text += fmt::format(", or {} with the whole margin of {:.6g} s",
                        clock_text(work_s + deck_margin_s_), deck_margin_s_);
  return text;
}

std::string TimeLimit::describe() {
  if (scheduler_) take(scheduler_->first(kFirstAnswer_s));
  if (end_s_ > 0)
    return fmt::format("wall time: {} left ({}), stops early for {} + step + save; ",
                       base::hms(std::max(0.0, left_s())), source_, margin_text());
  return scheduler_ && last_answer_ == 0
             ? "wall time: the scheduler was asked and has not answered yet; "
             : "";
}

}  // namespace job
