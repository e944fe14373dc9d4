// SPDX-License-Identifier: Apache-2.0
#include "records/slow_rank.hpp"

#include <algorithm>
#include <cmath>

namespace records {
namespace {

constexpr double kLeastShare = 0.1;    // of a step: the least cost of a slow rank
constexpr double kCarefulShare = 0.2;  // the same if less is known
constexpr double kLeastStep_s = 2e-3;  // per step
constexpr double kDeviations = 5;      // of the noise
constexpr double kExplains = 0.5;      // of the lost time: what a cause must explain
constexpr double kSavingShare = 0.1;   // of the window: syncs that slow all ranks alike
constexpr size_t kMostNoise = 16;      // windows whose noise counts
constexpr size_t kLeastNoise = 4;      // changes between windows, to estimate the noise over time
constexpr size_t kRecent = 8;          // windows that decide between once and chronic
constexpr size_t kLeastRecent = 4;
constexpr double kChronicShare = 0.75;  // of those windows

using Values = std::vector<double>;

// Returns the value at this share of the sorted values, the lower one of two.
double quantile(Values values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + long(double(values.size() - 1) * share);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double median(const Values& values) { return quantile(values, 0.5); }

// What counts as waiting for other ranks. A rank without CPU loses much of its time within its
// waits, because it cannot even notice that they are over. That time does not count as waiting
// for others.
enum class Waiting { measured, without_stolen };

double waited_s(const RankWindow& r, Waiting waiting) {
  return waiting == Waiting::measured ? r.wait_s : std::max(0.0, r.wait_s - r.stolen_s);
}

// Returns a value of all ranks but one.
template <class Value>
Values of_others(const Window& window, size_t rank, const Value& value) {
  Values out;
  for (size_t r = 0; r < window.of_rank.size(); ++r)
    if (r != rank) out.push_back(value(window.of_rank[r]));
  return out;
}

Values waits_of_others(const Window& window, size_t rank, Waiting waiting) {
  return of_others(window, rank, [=](const RankWindow& r) { return waited_s(r, waiting); });
}

// Returns the seconds per step by which this rank waits less than the others do.
double lead(const Window& window, size_t rank, Waiting waiting) {
  return (median(waits_of_others(window, rank, waiting)) -
          waited_s(window.of_rank[rank], waiting)) /
         double(window.steps);
}

// Estimates the deviation of the other ranks' waits per step. Returns 0 for fewer than three.
double noise_of_ranks(const Window& window, size_t rank, Waiting waiting) {
  Values waits = waits_of_others(window, rank, waiting);
  if (waits.size() < 3) return 0;
  const double middle = median(waits);
  for (double& w : waits) w = std::abs(w - middle);
  // Half the values are within 0.67 deviations. Of three or four values, one is always near the
  // median.
  return quantile(waits, waits.size() < 6 ? 0.75 : 0.5) / 0.67 / double(window.steps);
}

// Estimates the deviation of this rank's lead from window to window by the lower quarter of its
// changes, so that occasional slowness is not taken for noise. Changes over two windows count, too,
// for a rank that is slow in every second one. Returns a negative value where it is not known yet.
double noise_over_time(std::span<const Window> windows, size_t rank, Waiting waiting) {
  if (windows.size() > kMostNoise) windows = windows.last(kMostNoise);
  Values leads;
  for (const Window& window : windows) leads.push_back(lead(window, rank, waiting));
  double noise = -1;
  for (const size_t apart : {size_t{1}, size_t{2}}) {
    Values changes;
    for (size_t i = apart; i < leads.size(); ++i)
      changes.push_back(std::abs(leads[i] - leads[i - apart]));
    if (changes.size() < kLeastNoise) break;
    // A quarter of normal changes is below 0.45 deviations.
    const double found = quantile(changes, 0.25) / 0.45;
    noise = noise < 0 ? found : std::min(noise, found);
  }
  return noise;
}

// The ranks that are slow in a window.
struct Found {
  int rank = -1;
  Waiting waiting = Waiting::measured;
  double lost_s = 0;       // per step
  std::vector<bool> slow;  // by rank
};

// True if the slow rank's value exceeds the others' by so much that it explains most of the lost
// time.
bool explains(const Window& window, const Found& found, double RankWindow::*value) {
  const auto rank = size_t(found.rank);
  const double others =
      median(of_others(window, rank, [=](const RankWindow& r) { return r.*value; }));
  return window.of_rank[rank].*value - others >= kExplains * found.lost_s * double(window.steps);
}

Found find_by(std::span<const Window> windows, Waiting waiting) {
  const Window& window = windows.back();
  Found found{.rank = -1, .waiting = waiting, .lost_s = 0, .slow = {}};
  const auto least = std::min_element(
      window.of_rank.begin(), window.of_rank.end(),
      [=](auto& a, auto& b) { return waited_s(a, waiting) < waited_s(b, waiting); });
  const size_t rank = size_t(least - window.of_rank.begin());
  const double step_s = window.seconds / double(window.steps);
  const double over_time = noise_over_time(windows, rank, waiting);
  const double noise = std::max(noise_of_ranks(window, rank, waiting), over_time);
  const bool careful = over_time < 0 || waiting == Waiting::without_stolen;
  const double limit = std::max(
      {(careful ? kCarefulShare : kLeastShare) * step_s, kDeviations * noise, kLeastStep_s});
  const double lost_s = lead(window, rank, waiting);
  if (!(lost_s > limit)) return found;
  found.rank = int(rank);
  found.lost_s = lost_s;
  const double middle = median(waits_of_others(window, rank, waiting));
  for (const RankWindow& r : window.of_rank)
    found.slow.push_back((middle - waited_s(r, waiting)) / double(window.steps) >
                         std::max(limit, lost_s / 2));
  return found;
}

Found find(std::span<const Window> windows) {
  if (windows.back().of_rank.size() < 2) return {};
  const Found found = find_by(windows, Waiting::measured);
  if (found.rank >= 0) return found;
  const Found starved = find_by(windows, Waiting::without_stolen);
  return starved.rank >= 0 && explains(windows.back(), starved, &RankWindow::stolen_s) ? starved
                                                                                       : found;
}

// Returns what explains most of the time that the rank lost. Causes come before what they cause: a
// rank without CPU or memory also waits for its data.
SlowPhase phase_of(const Window& window, const Found& found) {
  const std::pair<double RankWindow::*, SlowPhase> causes[] = {
      {&RankWindow::sync_s, SlowPhase::saving},    {&RankWindow::longest_s, SlowPhase::saving},
      {&RankWindow::stolen_s, SlowPhase::machine}, {&RankWindow::memory_s, SlowPhase::machine},
      {&RankWindow::data_s, SlowPhase::input},     {&RankWindow::begin_s, SlowPhase::exchange}};
  for (const auto& [value, phase] : causes)
    if (explains(window, found, value)) return phase;
  return SlowPhase::computing;
}

// True if most of the newest windows found a slow rank of this host. A node with several slow ranks
// does not show the same one each time.
bool is_chronic(std::span<const Window> windows, std::span<const std::string> hosts, int rank) {
  size_t alike = 0, looked = 0;
  for (; looked < std::min(kRecent, windows.size()); ++looked) {
    const Found found = find(windows.first(windows.size() - looked));
    alike += found.rank >= 0 && (found.slow[size_t(rank)] || found.rank == rank) &&
             hosts[size_t(found.rank)] == hosts[size_t(rank)];
  }
  return alike >= kLeastRecent && double(alike) >= kChronicShare * double(looked);
}

}  // namespace

SlowVerdict judge(std::span<const Window> windows, std::span<const std::string> hosts) {
  SlowVerdict verdict;
  if (windows.empty()) return verdict;
  if (windows.size() > kWindowsJudged) windows = windows.last(kWindowsJudged);
  const Window& window = windows.back();
  verdict.step_s = verdict.without_s = window.seconds / double(window.steps);
  const Found found = find(windows);
  if (found.rank < 0) {
    Values syncs;
    for (const RankWindow& r : window.of_rank) syncs.push_back(r.sync_s);
    if (median(syncs) < kSavingShare * window.seconds) return verdict;
    verdict.phase = SlowPhase::saving;
    verdict.without_s -= median(syncs) / double(window.steps);
    return verdict;
  }
  verdict.phase = phase_of(window, found);
  verdict.rank = found.rank;
  verdict.host = hosts[size_t(found.rank)];
  verdict.chronic = is_chronic(windows, hosts, found.rank);
  // Without these ranks the next slowest one sets the pace.
  const double own = waited_s(window.of_rank[size_t(found.rank)], found.waiting);
  double next = INFINITY;
  for (size_t r = 0; r < window.of_rank.size(); ++r) {
    const bool leaves = int(r) == found.rank || (found.slow[r] && hosts[r] == verdict.host);
    verdict.also += leaves && int(r) != found.rank;
    if (!leaves) next = std::min(next, waited_s(window.of_rank[r], found.waiting));
  }
  verdict.without_s = std::max(0.0, verdict.step_s - (next - own) / double(window.steps));
  return verdict;
}

}  // namespace records
