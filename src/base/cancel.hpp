// SPDX-License-Identifier: Apache-2.0
// Long work of one rank, in a thread of its own, which the main thread can ask to end early
// (comm::beside).
#pragma once

#include <stop_token>

#include "base/error.hpp"

namespace base {

// Between pieces of the work: throws if it was asked to end. Who asked does not look at the error.
inline void end_if_asked(const std::stop_token& token) {
  if (token.stop_requested()) fail(Exit::internal, "asked to end early");
}

}  // namespace base
