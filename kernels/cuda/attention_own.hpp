// SPDX-License-Identifier: Apache-2.0
// Attention by our own kernels, for all cases that no library serves.
#pragma once

#include "kernels/attention.hpp"

namespace kernels {

void attention_by_tiles(const AttentionForward& a, Queue& queue);
void attention_by_tiles(const AttentionBackward& a, Queue& queue);

}  // namespace kernels
