// SPDX-License-Identifier: Apache-2.0
#include "job/call_check.hpp"

#include <map>

#include "base/text.hpp"
#include "job/flight.hpp"

namespace job {

Calls own_calls() {
  Calls calls;
  for (const FlightExchange& e : own_flight().calls) calls.newest.push_back({e.call, e.text});
  return calls;
}

std::string first_difference(const std::vector<Calls>& by_rank) {
  std::map<uint64_t, std::map<std::string, std::vector<int>>> calls;
  for (size_t r = 0; r < by_rank.size(); ++r)
    for (const Calls::Call& c : by_rank[r].newest) calls[c.number][c.text].push_back(int(r));
  for (const auto& [number, texts] : calls) {
    size_t ranks = 0;
    for (const auto& [text, who] : texts) ranks += who.size();
    if (ranks < by_rank.size()) continue;  // some ranks no longer know it, or have not called it
    if (texts.size() == 1) continue;
    std::string out = fmt::format("call {}", number);
    for (const auto& [text, who] : texts) out += fmt::format("; {}: {}", list_of_ranks(who), text);
    return out;
  }
  return "calls that are too long ago to be known";
}

void refuse_unlike_calls(comm::Comm& world) {
  std::string mine;
  for (const Calls::Call& c : own_calls().newest) mine += fmt::format("{} {}\n", c.number, c.text);
  std::vector<Calls> all;
  for (const std::string& text : world.gather_text(mine)) {
    Calls& calls = all.emplace_back();
    for (const std::string& line : base::split(text, '\n'))
      if (const size_t space = line.find(' '); space != line.npos)
        calls.newest.push_back({std::stoull(line), line.substr(space + 1)});
  }
  throw base::Error(base::Exit::internal,
                    "the ranks have called different exchanges, so what they hold is wrong: " +
                        first_difference(all) +
                        ". This is a bug of the program or of the MPI library",
                    true);
}

}  // namespace job
