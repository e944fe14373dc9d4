// SPDX-License-Identifier: Apache-2.0
#include "job/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace job {
namespace {

std::string spans_of(const FlightThread& thread) {
  std::string text;
  for (const OpenSpan& span : thread.open) text += (text.empty() ? "" : " > ") + span.text;
  return text;
}

std::string where(const Standing& s) {
  return fmt::format("rank {} ({}, phase {}, step {})", s.rank, s.host,
                     !s.flight                 ? "?"
                     : s.flight->phase.empty() ? "start"
                                               : s.flight->phase,
                     s.flight ? s.flight->step : 0);
}

// Returns what the main thread does, for a rank that cannot report it.
std::string last_known(const Standing& s) {
  if (!s.flight) return "";
  for (const FlightThread& t : s.flight->threads)
    if (t.name == "main" && !t.open.empty()) return fmt::format(", in {}", spans_of(t));
  return "";
}

// Returns what the other ranks wait for: the call that most of them are in.
std::string waiting_text(const std::vector<Standing>& standing, int culprit) {
  std::map<std::string, std::vector<int>> calls;
  for (const Standing& s : standing) {
    if (s.rank == culprit || !s.flight) continue;
    // An exchange that began later may have ended before the one that the rank waits for.
    const FlightExchange& call = s.flight->last.ended ? s.flight->oldest : s.flight->last;
    if (call.call && !call.ended) calls[call.text].push_back(s.rank);
  }
  auto most = std::max_element(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  if (most == calls.end()) return "";
  return fmt::format("; {} wait{} in {}", list_of_ranks(most->second),
                     most->second.size() == 1 ? "s" : "", most->first);
}

Verdict about(const Standing& s, const std::string& what, const std::vector<Standing>& standing) {
  std::string own;
  if (s.flight && s.flight->last.call && !s.flight->last.ended)
    own = fmt::format("; its newest exchange is call {}, {}", s.flight->last.call,
                      s.flight->last.text);
  return {s.rank, s.host,
          fmt::format("{} {}{}{}", where(s), what, own, waiting_text(standing, s.rank))};
}

// Ranks in exchanges that wait for data poll, which uses CPU time. Returns the rank in an exchange
// whose main thread uses none, if the others' threads use some; null if there is none.
const Standing* stuck_in_a_call(const std::vector<Standing>& standing) {
  std::vector<const Standing*> in_calls;
  for (const Standing& s : standing)
    if (s.flight && s.flight->last.call && !s.flight->last.ended) in_calls.push_back(&s);
  if (in_calls.size() < 2) return nullptr;
  auto ran = [](const Standing* s) { return s->flight->main_ran_ppm; };
  std::sort(in_calls.begin(), in_calls.end(),
            [&](const Standing* a, const Standing* b) { return ran(a) < ran(b); });
  constexpr int64_t kStuck_ppm = 200, kPolls_ppm = 2000;
  return ran(in_calls[0]) < kStuck_ppm && ran(in_calls[1]) > kPolls_ppm ? in_calls[0] : nullptr;
}

// The call that a rank waits in.
const FlightExchange& present(const Standing& s) {
  return s.flight->oldest.call ? s.flight->oldest : s.flight->last;
}

// Returns the text of a call; "" if it is not known.
std::string call_text(const Standing& s, uint64_t number) {
  for (const FlightExchange& e : s.flight->calls)
    if (e.call == number) return e.text;
  return s.flight->last.call == number ? s.flight->last.text : "";
}

// False also for a call that the rank has not begun.
bool has_ended(const Standing& s, uint64_t number) {
  for (const FlightExchange& e : s.flight->calls)
    if (e.call == number) return e.ended;
  return s.flight->last.call == number && s.flight->last.ended;
}

// Returns the first and the last call that all these ranks know; none if they are fewer than two.
std::pair<uint64_t, uint64_t> common_calls(const std::vector<const Standing*>& known) {
  if (known.size() < 2) return {1, 0};
  uint64_t first = 0, last = UINT64_MAX;
  for (const Standing* s : known) {
    const std::vector<FlightExchange>& calls = s->flight->calls;
    first = std::max(first, calls.empty() ? s->flight->last.call : calls.front().call);
    last = std::min(last, s->flight->last.call);
  }
  return {first, last};
}

// True if the same two calls in a row also occur earlier. Steps repeat their calls, so a call that
// never followed its predecessor before is the wrong one.
bool followed_before(const Standing& s, uint64_t number) {
  const std::string before = call_text(s, number - 1), text = call_text(s, number);
  const std::vector<FlightExchange>& calls = s.flight->calls;
  for (size_t i = 1; i < calls.size() && calls[i].call < number; ++i)
    if (calls[i - 1].text == before && calls[i].text == text) return true;
  return false;
}

// Returns the first rank of the smallest group, which is to blame. Of groups of equal size, takes
// the one for which `odd` is true.
template <class Key, class Odd>
const Standing* odd_one(const std::map<Key, std::vector<const Standing*>>& groups, Odd odd) {
  const std::vector<const Standing*>* least = nullptr;
  for (const auto& [key, group] : groups)
    if (!least || group.size() < least->size() ||
        (group.size() == least->size() && odd(*group.front()) && !odd(*least->front())))
      least = &group;
  return least->front();
}

// Returns the ranks whose calls are known.
std::vector<const Standing*> with_calls(const std::vector<Standing>& standing) {
  std::vector<const Standing*> known;
  for (const Standing& s : standing)
    if (s.flight && s.flight->last.call) known.push_back(&s);
  return known;
}

template <class Key>
std::vector<int> ranks_of(const std::map<Key, std::vector<const Standing*>>& groups,
                          const Key& key) {
  std::vector<int> ranks;
  for (const Standing* s : groups.at(key)) ranks.push_back(s->rank);
  return ranks;
}

}  // namespace

Verdict find_unlike(const std::vector<Standing>& standing) {
  const std::vector<const Standing*> known = with_calls(standing);
  const auto [first, last] = common_calls(known);
  for (uint64_t number = first; number <= last; ++number) {
    std::map<std::string, std::vector<const Standing*>> by_text;
    for (const Standing* s : known) by_text[call_text(*s, number)].push_back(s);
    if (by_text.size() == 1 || by_text.contains("")) continue;
    const Standing& odd =
        *odd_one(by_text, [&](const Standing& s) { return !followed_before(s, number); });
    std::string text =
        fmt::format("{}: ranks have called different exchanges at call {}", where(odd), number);
    for (const auto& [call, group] : by_text)
      text += fmt::format("; {}: {}", list_of_ranks(ranks_of(by_text, call)), call);
    if (const std::string before = call_text(odd, number - 1); !before.empty())
      text += fmt::format("; all have called {} before", before);
    return {odd.rank, odd.host, text};
  }
  return {};
}

Verdict find_parted(const std::vector<Standing>& standing) {
  if (Verdict unlike = find_unlike(standing); unlike.rank >= 0) return unlike;
  const std::vector<const Standing*> known = with_calls(standing);
  const auto [first, last] = common_calls(known);
  for (uint64_t number = first; number <= last; ++number) {
    std::map<bool, std::vector<const Standing*>> by_end;
    for (const Standing* s : known) by_end[has_ended(*s, number)].push_back(s);
    if (by_end.size() == 1) continue;
    const Standing& odd = *odd_one(by_end, [&](const Standing& s) { return has_ended(s, number); });
    const std::string call = fmt::format("call {}, {}", number, call_text(odd, number));
    if (has_ended(odd, number))
      return {odd.rank, odd.host,
              fmt::format("{} has left {}, in which {} still wait{}: it took no part, or took part "
                          "in another exchange; it is in call {}, {}",
                          where(odd), call, list_of_ranks(ranks_of(by_end, false)),
                          by_end.at(false).size() == 1 ? "s" : "", present(odd).call,
                          present(odd).text)};
    // The root of a broadcast leaves early. A rank whose data have not arrived is not to blame.
    if (call_text(odd, number).starts_with("broadcast")) return {};
    return {odd.rank, odd.host,
            fmt::format("{} still waits in {}, which the others have left", where(odd), call)};
  }
  return {};
}

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
  // Ranks that have called different exchanges wait forever, or compute with wrong data.
  if (Verdict unlike = find_unlike(standing); unlike.rank >= 0) return unlike;
  // The others wait for a rank that works. If several ranks work, the one that has called the
  // fewest exchanges is behind.
  const Standing* behind = nullptr;
  for (const Standing& s : standing)
    if (s.flight && !busy_thread(*s.flight).empty() &&
        (!behind || s.flight->exchanges < behind->flight->exchanges))
      behind = &s;
  if (behind)
    return about(
        *behind,
        fmt::format("has made no progress for {:.0f} s: {}", idle_s, busy_thread(*behind->flight)),
        standing);
  for (const Standing& s : standing)
    if (!s.answers) return about(s, "does not answer" + last_known(s), standing);
  if (const Standing* stuck = stuck_in_a_call(standing))
    return about(*stuck,
                 fmt::format("has not come back from its call for {:.0f} s: {}", idle_s,
                             stuck->flight->last.text),
                 standing);
  // All wait.
  if (Verdict parted = find_parted(standing); parted.rank >= 0) return parted;
  std::map<std::string, std::vector<const Standing*>> waits;
  for (const Standing* s : with_calls(standing)) waits[present(*s).text].push_back(s);
  if (waits.empty()) return {-1, "", "no rank makes progress, and none has called an exchange"};
  if (waits.size() == 1)
    return {-1, "",
            fmt::format("all ranks wait in {}: its data do not arrive", waits.begin()->first)};
  std::string text = "data do not arrive";
  for (const auto& [call, group] : waits)
    text += fmt::format("; {} wait{} in {}", list_of_ranks(ranks_of(waits, call)),
                        group.size() == 1 ? "s" : "", call);
  return {-1, "", text};
}

}  // namespace job
