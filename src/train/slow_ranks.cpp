// SPDX-License-Identifier: Apache-2.0
#include "train/slow_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/clock.hpp"
#include "base/log_components.hpp"
#include "base/names.hpp"
#include "comm/waits.hpp"
#include "io/sync_times.hpp"

namespace train {
namespace log = base::log;

namespace {

constexpr int64_t kWarmUp = 2;       // first steps, in which libraries prepare themselves
constexpr int64_t kFirstWindow = 8;  // steps
constexpr int64_t kLeastWindow = 4;
constexpr double kWindow_s = 10;
constexpr int64_t kShort = 4;        // short windows at first, so that a verdict comes early
constexpr int64_t kWarnAgain = 360;  // windows, about an hour; then twice as many, and so on

// What a rank sends at the end of a window: the values of RankWindow, and the window's seconds.
constexpr int64_t kSent = records::RankWindow::kValues + 1;

std::vector<double> packed(const records::RankWindow& r, double seconds) {
  return {r.wait_s, r.data_s, r.begin_s, r.sync_s, r.longest_s, r.stolen_s, r.memory_s, seconds};
}

records::RankWindow unpacked(const double* v) {
  return {.wait_s = v[0],
          .data_s = v[1],
          .begin_s = v[2],
          .sync_s = v[3],
          .longest_s = v[4],
          .stolen_s = v[5],
          .memory_s = v[6]};
}

const char* advice(records::SlowPhase phase) {
  switch (phase) {
    case records::SlowPhase::input:
      return "it waits for its data: look at the files and the network that it reads from, and at "
             "loader.threads";
    case records::SlowPhase::exchange:
      return "it takes long to begin exchanges: look at its network";
    case records::SlowPhase::saving:
      return "it waits until its files are on the disk: look at its way to the run directory";
    case records::SlowPhase::machine:
      return "its CPUs run other programs, or its memory is short: look for them on this host";
    default:
      return "it computes longer than the others: compare its cores, clock rate and temperature "
             "with theirs";
  }
}

}  // namespace

void SlowRanks::open() {
  comm::Comm& world = attempt_.world();
  if (world.size() < 2) return;
  ranks_ = size_t(world.size());
  std::vector<std::string> hosts = world.gather_text(attempt_.job.session().host());
  if (attempt_.leads()) hosts_ = std::move(hosts);
  lost_.emplace(attempt_.job.threads());
  length_ = kFirstWindow;
  steps_ = -kWarmUp;
  start_window();
}

SlowRanks::Counts SlowRanks::counts() const {
  const comm::Waits& waits = comm::waits();
  return {base::now_s(), waits.waiting_s, waits.beginning_s, io::synced_s()};
}

void SlowRanks::begin() {
  if (ranks_ && !running_) running_ = counts();
}

void SlowRanks::pause() {
  if (!running_) return;
  const Counts now = counts(), &then = *running_;
  counted_s_ += now.now_s - then.now_s;
  own_.wait_s += now.wait_s - then.wait_s;
  own_.begin_s += now.begin_s - then.begin_s;
  own_.sync_s += now.sync_s - then.sync_s;
  running_.reset();
}

void SlowRanks::start_window() {
  own_ = {};
  counted_s_ = 0;
  began_s_ = base::now_s();
  io::take_longest_sync_s();
  lost_->since_last();
}

void SlowRanks::drop() {
  running_.reset();
  if (!ranks_) return;
  steps_ = std::min<int64_t>(steps_, 0);
  start_window();
}

void SlowRanks::step_done() {
  if (!ranks_) return;
  pause();
  if (++steps_ == 0) start_window();  // the warm-up is over
  if (steps_ == length_) gather();
  begin();
}

void SlowRanks::gather() {
  const host::LostTime::Seconds lost = lost_->since_last();
  // Evaluations run between the window's steps, and the system's counts include them.
  const double share = std::min(1.0, counted_s_ / std::max(base::now_s() - began_s_, 1e-9));
  own_.stolen_s = lost.stolen * share;
  own_.memory_s = lost.memory * share;
  own_.longest_s = io::take_longest_sync_s();
  std::vector<double> send = packed(own_, counted_s_), all(ranks_ * size_t(kSent));
  attempt_.world()
      .all_gather({send.data(), device::DType::f64, kSent},
                  {all.data(), device::DType::f64, int64_t(all.size())})
      .wait();
  records::Window window{.steps = steps_, .seconds = 0, .of_rank = {}};
  for (size_t r = 0; r < ranks_; ++r) {
    const double* values = all.data() + r * size_t(kSent);
    window.of_rank.push_back(unpacked(values));
    window.seconds = std::max(window.seconds, values[kSent - 1]);
  }
  // All ranks compute the next length from the same numbers.
  const double step_s = std::max(window.seconds / double(steps_), 1e-6);
  const int64_t most = ++gathered_ < kShort ? kFirstWindow : 2 * length_;
  length_ = std::max(kLeastWindow, std::min(int64_t(kWindow_s / step_s), most));
  steps_ = 0;
  if (attempt_.leads()) {
    windows_.push_back(std::move(window));
    if (windows_.size() > records::kWindowsJudged) windows_.pop_front();
    judge_newest();
  }
  start_window();
}

void SlowRanks::judge_newest() {
  const std::vector<records::Window> recent(windows_.begin(), windows_.end());
  const records::Window& newest = recent.back();
  Row row;
  for (const records::RankWindow& r : newest.of_rank) {
    const double data_s = r.data_s / double(newest.steps);
    row.data_mean_s += data_s / double(newest.of_rank.size());
    row.data_max_s = std::max(row.data_max_s, data_s);
  }
  row.verdict = records::judge(recent, hosts_);
  if (log::writes(log::Component::train, log::Level::debug)) {
    std::string text;
    for (const records::RankWindow& r : newest.of_rank) {
      const std::vector<double> values = packed(r, newest.seconds);
      text += fmt::format(" {:.6f}", fmt::join(values.begin(), values.end() - 1, ","));
    }
    log::debug(log::Component::train, "window steps={} s={:.6f}{}", newest.steps, newest.seconds,
               text);
  }
  if (row.verdict.rank >= 0 && row.verdict.chronic) warn(row.verdict);
  // A row of metrics may cover several windows. It then reports the newest slow rank.
  if (row_ && row.verdict.rank < 0 && row_->verdict.rank >= 0) row.verdict = row_->verdict;
  row_ = row;
}

void SlowRanks::warn(const records::SlowVerdict& v) {
  auto& [next, pause] = warned_[{v.rank, v.phase}];
  if (gathered_ < next) return;
  pause = pause ? 2 * pause : kWarnAgain;
  next = gathered_ + pause;
  log::warning(
      "rank {} on {}{} makes the others wait in most steps, phase {}: a step takes {:.0f} ms, and "
      "would take {:.0f} ms without this rank; {}",
      v.rank, v.host, v.also ? fmt::format(" (and {} more of its ranks)", v.also) : "",
      base::name_of(records::kSlowPhaseNames, v.phase), 1e3 * v.step_s, 1e3 * v.without_s,
      advice(v.phase));
}

void SlowRanks::add_to(records::MetricValues& row) {
  if (!row_) return;
  const records::SlowVerdict& v = row_->verdict;
  row.insert(row.end(), {{"data_mean_ms", row_->data_mean_s * 1e3},
                         {"data_max_ms", row_->data_max_s * 1e3},
                         {"slow_rank", double(v.rank)},
                         {"slow_ms", (v.step_s - v.without_s) * 1e3},
                         {"slow_phase", double(int(v.phase))},
                         {"slow_chronic", double(v.chronic)}});
  row_.reset();
}

}  // namespace train
