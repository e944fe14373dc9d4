// SPDX-License-Identifier: Apache-2.0
// Initial values (cappa.md 1.7), a pure function of (seed, path, element): the same on every mesh.
#pragma once

#include "shard/parameter.hpp"

namespace shard {

// Writes elements [begin, end) of the flattened parameter to out.
void initial_values(const Parameter& parameter, uint64_t seed, int64_t begin, int64_t end,
                    float* out, int threads = 1);

}  // namespace shard
