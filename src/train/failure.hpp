// How ranks that fail end together.
#pragma once

#include <functional>
#include <string>

#include "comm/comm.hpp"

namespace train {

// Before anything runs. Ranks that failed in different ways (code 0: not at all) end together: the first cause (lowest
// rank) is printed, and its code is everybody's. 0 if none has failed.
int agree_on_failure(comm::Comm& world, int code, const std::string& text);

// Does the work and returns its exit code. An error of one rank ends the job while everything of this rank still
// stands: destructors might wait for other ranks, which wait for this one.
int end_all_on_error(comm::Session& session, const std::function<int()>& work);

}  // namespace train
