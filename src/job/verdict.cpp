// SPDX-License-Identifier: Apache-2.0
#include "job/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace job {
namespace {

std::string spans_of(const FlightThread& thread) {
  std::string text;
  for (const OpenSpan& span : thread.open) text += (text.empty() ? "" : " > ") + span.text;
  return text;
}

std::string where(const Standing& s) {
  return fmt::format("rank {} ({}, phase {}, step {})", s.rank, s.host,
                     s.flight ? s.flight->phase : "?", s.flight ? s.flight->step : 0);
}

// Returns what the main thread does, for a rank that cannot tell.
std::string last_known(const Standing& s) {
  if (!s.flight) return "";
  for (const FlightThread& t : s.flight->threads)
    if (t.name == "main" && !t.open.empty()) return fmt::format(", in {}", spans_of(t));
  return "";
}

// Returns what the other ranks wait for: the call that most of them are in.
std::string waiting_text(const std::vector<Standing>& standing, int culprit) {
  std::map<std::string, std::vector<int>> calls;
  for (const Standing& s : standing)
    if (s.rank != culprit && s.flight && s.flight->last.call && !s.flight->last.ended)
      calls[s.flight->last.text].push_back(s.rank);
  auto most = std::max_element(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  if (most == calls.end()) return "";
  return fmt::format("; {} wait{} in {}", list_of_ranks(most->second),
                     most->second.size() == 1 ? "s" : "", most->first);
}

Verdict about(const Standing& s, const std::string& what, const std::vector<Standing>& standing) {
  return {s.rank, s.host, fmt::format("{} {}{}", where(s), what, waiting_text(standing, s.rank))};
}

}  // namespace

std::string busy_thread(const Flight& flight) {
  std::string text;
  int64_t newest = -1;
  for (const FlightThread& t : flight.threads) {
    const bool main = t.name == "main";
    if (t.name == "watchdog" || (t.open.empty() && !main)) continue;
    if (!t.open.empty() && t.open.back().waits) continue;
    const int64_t begin = t.open.empty() ? 0 : t.open.back().begin_ns;
    if (begin <= newest) continue;
    newest = begin;
    text = (main ? "" : t.name + ": ") + (t.open.empty() ? "phase " + flight.phase : spans_of(t));
  }
  return text;
}

Verdict find_culprit(const std::vector<Standing>& standing, double idle_s) {
  for (const Standing& s : standing) {
    if (s.state == 'T' || s.state == 't')
      return about(s, "is stopped (SIGSTOP or a debugger)" + last_known(s), standing);
    if (s.state == 0 || s.state == 'Z')
      return about(s, "has ended without a word" + last_known(s), standing);
  }
  for (const Standing& s : standing)
    if (!s.answers && s.state == 'D')
      return about(s, "waits for a device or file system (state D)" + last_known(s), standing);
  // A rank that works while others wait is the one that they wait for. Of several the one that has
  // called the fewest exchanges is behind.
  const Standing* behind = nullptr;
  for (const Standing& s : standing)
    if (s.flight && !busy_thread(*s.flight).empty() &&
        (!behind || s.flight->exchanges < behind->flight->exchanges))
      behind = &s;
  if (behind)
    return about(
        *behind,
        fmt::format("does not go on since {:.0f} s: {}", idle_s, busy_thread(*behind->flight)),
        standing);
  for (const Standing& s : standing)
    if (!s.answers) return about(s, "does not answer" + last_known(s), standing);
  // All wait. Ranks that have called different exchanges wait for ever.
  std::map<std::string, std::vector<int>> calls;
  for (const Standing& s : standing)
    if (s.flight && s.flight->last.call) calls[s.flight->last.text].push_back(s.rank);
  if (calls.size() > 1) {
    auto fewest = std::min_element(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    std::string text = "ranks have called different exchanges";
    for (const auto& [call, ranks] : calls)
      text += fmt::format("; {}: {}", list_of_ranks(ranks), call);
    const Standing& odd = standing[size_t(fewest->second.front())];
    return {odd.rank, odd.host, fmt::format("{}: {}", where(odd), text)};
  }
  if (calls.size() == 1)
    return {-1, "",
            fmt::format("all ranks wait in {}: its data do not arrive", calls.begin()->first)};
  return {-1, "", "no rank goes on, and none has called an exchange"};
}

}  // namespace job
