// SPDX-License-Identifier: Apache-2.0
// Ends a job whose ranks have called different exchanges: they must all call the same ones in the
// same order.
#pragma once

#include "comm/comm.hpp"

namespace job {

// Throws Error(Exit::internal) that names the rank and both calls. All ranks call, after they have
// found that their calls differ.
[[noreturn]] void refuse_unlike_calls(comm::Comm& world);

}  // namespace job
