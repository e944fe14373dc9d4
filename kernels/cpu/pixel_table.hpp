// SPDX-License-Identifier: Apache-2.0
// The value of each byte and channel.
#pragma once

#include "kernels/pixel_range.hpp"

namespace kernels {

struct PixelTable {
  explicit PixelTable(const PixelRange& range);
  float value[3][256];
};

}  // namespace kernels
