// SPDX-License-Identifier: Apache-2.0
// Lets the main thread cancel long work that runs in another thread of its rank (comm::beside).
#pragma once

#include <stop_token>

#include "base/error.hpp"

namespace base {

// Throws if the work was cancelled. Call it between pieces of the work. The canceller ignores the
// error.
inline void end_if_asked(const std::stop_token& token) {
  if (token.stop_requested()) fail(Exit::internal, "cancelled");
}

}  // namespace base
