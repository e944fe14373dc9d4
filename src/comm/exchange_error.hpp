// SPDX-License-Identifier: Apache-2.0
// An exchange between ranks has failed. They can agree on nothing any more, so this rank ends the
// job.
#pragma once

#include "base/error.hpp"

namespace comm {

struct ExchangeError : base::Error {
  explicit ExchangeError(const std::string& text) : Error(base::Exit::mesh, text) {}
};

}  // namespace comm
