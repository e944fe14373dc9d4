// SPDX-License-Identifier: Apache-2.0
// Mixup (arXiv 1710.09412): each image becomes a blend with another one of the batch.
#pragma once

#include "kernels/patchify.hpp"

namespace kernels {

// y[b] = shares[b] * x[b] + (1 - shares[b]) * x[partner(b)], each operation rounded. Bytes are
// scaled first, as in Patchify.
struct MixImages {
  static constexpr Op op = Op::mix_images;
  View y;       // [batch, count]
  View x;       // f32 or u8 [batch, count]
  View shares;  // [batch]
  int64_t batch = 0, count = 0;
  int64_t group = 2;   // examples of a group; divides the batch
  PixelRange range{};  // of bytes
};

// Returns the partner of an example: the one before it in its group of consecutive examples. The
// partner of the first one is the last one.
constexpr int64_t mix_partner(int64_t example, int64_t group) {
  return example % group ? example - 1 : example + group - 1;
}

}  // namespace kernels
