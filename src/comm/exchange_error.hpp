// SPDX-License-Identifier: Apache-2.0
// An exchange between ranks has failed. The ranks can no longer agree on anything, so this rank
// ends the job.
#pragma once

#include "base/error.hpp"

namespace comm {

struct ExchangeError : base::Error {
  explicit ExchangeError(const std::string& text) : Error(base::Exit::mesh, text) {}
};

}  // namespace comm
