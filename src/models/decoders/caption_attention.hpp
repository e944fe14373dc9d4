// SPDX-License-Identifier: Apache-2.0
// Attention of one decoded token over an image, computed on the host for people to look at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/queue.hpp"

namespace models {

// Returns a copy of f32, bf16 or f16 values as floats. Waits for the queue.
std::vector<float> values_of(device::Queue& queue, const device::View& view);

// Returns the mean over heads of softmax(q . k / sqrt(head_dim)) over the rows of k (cappa.md 1.3),
// [rows of k]. The sum of the weights is 1. q is [heads, head_dim] and k [rows, heads, head_dim].
// Sums and softmax are in double.
std::vector<float> mean_attention(std::span<const float> q, std::span<const float> k,
                                  int64_t heads);

}  // namespace models
