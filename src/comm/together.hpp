// SPDX-License-Identifier: Apache-2.0
// Runs work whose outcome all ranks agree on: either every rank goes on, or every rank throws the
// same error. Use it between work that can fail on one rank and the next collective call; otherwise
// the other ranks would wait forever.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/comm.hpp"

namespace comm {

// Runs `work` and encodes its result or its error as text. Never throws.
std::string outcome(const std::function<std::string()>& work);
// Returns the result of every rank's outcome, by rank. If an outcome is an error, every rank throws
// that error.
std::vector<std::string> agree_on(comm::Comm& comm, const std::string& outcome);

// Runs `work` on every rank. Returns every rank's text, by rank, if `work` returns text.
template <class Work>
auto together(comm::Comm& comm, Work work) {
  if constexpr (std::is_void_v<decltype(work())>)
    agree_on(comm, outcome([&] {
               work();
               return std::string();
             }));
  else
    return agree_on(comm, outcome(work));
}
// Runs long work in another thread of each rank and returns every rank's text, by rank. Meanwhile
// the main threads of all ranks call `poll` repeatedly, in step. If poll throws, on all ranks,
// every rank's work is cancelled through its token and poll's error is rethrown. If the work of one
// rank fails, the work of the other ranks is cancelled.
using Poll = std::function<void()>;
using LongWork = std::function<std::string(const std::stop_token& token)>;
std::vector<std::string> beside(comm::Comm& comm, const LongWork& work, const Poll& poll);
// Runs `work` on rank 0 alone and returns its result on every rank.
std::string on_first(comm::Comm& comm, const std::function<std::string()>& work);

}  // namespace comm
