// SPDX-License-Identifier: Apache-2.0
// The clocks of the ranks, and their threads and cores. None of this stops a run, so these rows
// only warn.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/text.hpp"
#include "host/threads.hpp"
#include "modes/selftest_checks.hpp"

namespace modes::selftest {
namespace {

constexpr double kMost_s = 1;  // difference of two clocks

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Row check_wall_clocks(Place& place) {
  comm::Comm& world = place.world();
  const std::vector<Offset> offsets = clock_offsets(comm::read_clocks(world, 24, wall_time));
  const std::vector<int> wrong = wrong_clocks(offsets, kMost_s);
  double least = 0, most = 0, unsure = 0;
  for (const Offset& o : offsets) {
    least = std::min(least, o.middle());
    most = std::max(most, o.middle());
    unsure = std::max(unsure, (o.most - o.least) / 2);
  }
  Row row{.check = "clocks",
          .text = fmt::format("within {:.1f} ms of each other, known to {:.1f} ms",
                              (most - least) * 1e3, unsure * 1e3)};
  // Compared with a rank whose clock is right.
  size_t right = 0;
  while (right + 1 < offsets.size() &&
         std::find(wrong.begin(), wrong.end(), int(right)) != wrong.end())
    ++right;
  for (const int rank : wrong) {
    const double ahead = offsets[size_t(rank)].middle() - offsets[right].middle();
    row.warned.push_back(
        {rank, fmt::format("its clock is {:.1f} s {} that of {}", std::abs(ahead),
                           ahead > 0 ? "ahead of" : "behind", place.name(int(right)))});
  }
  return row;
}

Row check_threads(Place& place) {
  const std::vector<host::RankCores> ranks =
      host::gather_cores(place.world(), place.session.host(), place.threads);
  size_t least = 1 << 20, most = 0;
  for (const host::RankCores& r : ranks) {
    least = std::min(least, r.cores.size());
    most = std::max(most, r.cores.size());
  }
  const std::string cores =
      least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  Row row{.check = "threads",
          .text = fmt::format("{} thread{} of each rank, on {} core{} of {}", place.threads,
                              place.threads == 1 ? "" : "s", cores, most == 1 ? "" : "s",
                              ranks.front().node_cores)};
  for (const std::string& advice : host::binding_advice(ranks)) {
    const std::string at = advice.substr(0, advice.find_first_of(" :"));
    size_t rank = 0;
    while (rank + 1 < ranks.size() && ranks[rank].host != at) ++rank;
    const std::string prefix = at + ": ";
    row.warned.push_back(
        {int(rank), advice.starts_with(prefix) ? advice.substr(prefix.size()) : advice});
  }
  // Ranks that wait although they have enough cores share them with other programs.
  constexpr double kMuch = 0.3;
  if (row.warned.empty())
    for (size_t r = 0; r < place.speeds.size(); ++r)
      if (place.speeds[r].waited > kMuch)
        row.warned.push_back(
            {int(r), fmt::format("waits {:.0f} % of the time for a core that other programs use",
                                 100 * place.speeds[r].waited)});
  return row;
}

}  // namespace

std::vector<int> wrong_clocks(const std::vector<Offset>& offsets, double most_s) {
  auto apart = [&](const Offset& a, const Offset& b) {
    return a.least - b.most > most_s || b.least - a.most > most_s;
  };
  auto disagreeing = [&](size_t with) {
    std::vector<int> out;
    for (size_t r = 0; r < offsets.size(); ++r)
      if (apart(offsets[r], offsets[with])) out.push_back(int(r));
    return out;
  };
  std::vector<int> best = disagreeing(0);
  for (size_t r = 1; r < offsets.size() && 2 * best.size() > offsets.size(); ++r)
    if (std::vector<int> other = disagreeing(r); other.size() < best.size()) best = other;
  return best;
}

std::vector<Row> check_clocks(Place& place) {
  std::vector<Row> rows;
  if (place.ranks() > 1) rows.push_back(check_wall_clocks(place));
  rows.push_back(check_threads(place));
  return rows;
}

}  // namespace modes::selftest
