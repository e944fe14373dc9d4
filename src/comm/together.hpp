// SPDX-License-Identifier: Apache-2.0
// Work whose outcome all ranks agree on: either every rank goes on, or every rank throws the same
// error. Must stand between any work that can fail on one rank and the next collective call, or the
// others would wait forever.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/comm.hpp"

namespace comm {

// What became of some work, as text that can travel: its result, or its error. Never throws.
std::string outcome(const std::function<std::string()>& work);
// The results of every rank's outcome, by rank; or, if one of them is an error, that error, on
// every rank.
std::vector<std::string> agree_on(comm::Comm& comm, const std::string& outcome);

// Runs `work` on every rank; returns every rank's text, by rank, if it gives one.
template <class Work>
auto together(comm::Comm& comm, Work work) {
  if constexpr (std::is_void_v<decltype(work())>)
    agree_on(comm, outcome([&] { return work(), std::string(); }));
  else
    return agree_on(comm, outcome(work));
}
// The same with work that may take long: it runs in another thread of each rank, while the main
// threads of all ranks call `poll`, alike, again and again. If poll throws, on all ranks, then
// every rank's work is asked to end, by its token, and poll's error goes on. If the work of one
// rank fails, that of the others is asked to end.
using Poll = std::function<void()>;
using LongWork = std::function<std::string(const std::stop_token& token)>;
std::vector<std::string> beside(comm::Comm& comm, const LongWork& work, const Poll& poll);
// Runs `work` on rank 0 alone and returns its result on every rank.
std::string on_first(comm::Comm& comm, const std::function<std::string()>& work);

}  // namespace comm
