// SPDX-License-Identifier: Apache-2.0
#include "comm/clocks.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace comm {

std::vector<std::vector<Readings>> read_clocks(Comm& world, int barriers, double (*now_s)()) {
  std::string mine;
  for (int i = 0; i < barriers; ++i) {
    const double before = now_s();
    world.barrier();
    mine += fmt::format("{}{:.9f} {:.9f}", i ? " " : "", before, now_s());
  }
  std::vector<std::vector<Readings>> rounds(static_cast<size_t>(barriers));
  for (const std::string& text : world.gather_text(mine)) {
    const std::vector<std::string> words = base::split(text, ' ');
    for (size_t i = 0; i < rounds.size(); ++i)
      rounds[i].push_back({std::stod(words.at(2 * i)), std::stod(words.at(2 * i + 1))});
  }
  return rounds;
}

std::vector<Offset> clock_offsets(const std::vector<std::vector<Readings>>& rounds) {
  std::vector<Offset> out(rounds.front().size());
  for (const std::vector<Readings>& round : rounds)
    for (size_t r = 0; r < round.size(); ++r) {
      // Rank r left the barrier after rank 0 entered it, and rank 0 left after rank r entered.
      out[r].most = std::min(out[r].most, round[r].after - round[0].before);
      out[r].least = std::max(out[r].least, round[r].before - round[0].after);
    }
  out[0] = {0, 0};
  return out;
}

}  // namespace comm
