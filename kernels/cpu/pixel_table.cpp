// SPDX-License-Identifier: Apache-2.0
// A fused multiply-add would give other bits than the preprocessing ops, so this file has none.
#include "kernels/cpu/pixel_table.hpp"

namespace kernels {

PixelTable::PixelTable(const PixelRange& r) {
  for (int channel = 0; channel < 3; ++channel)
    for (int byte = 0; byte < 256; ++byte) {
      const float all = r.to_low + (float(byte) - r.low) / r.width * r.to_width;
      value[channel][byte] = (all - r.mean[channel]) / r.deviation[channel];
    }
}

}  // namespace kernels
