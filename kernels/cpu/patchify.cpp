// SPDX-License-Identifier: Apache-2.0
// CPU implementation of patchify.
#include "kernels/patchify.hpp"

#include <cstring>
#include <vector>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/pixel_table.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {
constexpr int64_t kChannels = Patchify::kChannels;
}  // namespace

void run_cpu(const Patchify& a, Queue& queue) {
  const bool bytes = a.image.type == DType::u8;
  const PixelTable table(a.range);
  bool narrow = a.patches.type == DType::bf16;
  auto to_bf16 = vector_table().to_bf16;
  int64_t rows = a.height / a.patch, columns = a.width / a.columns(), run = a.columns() * kChannels;
  for_ranges(queue, a.batch * rows, a.rows() * a.elements(), 1, [&](int64_t i, int64_t end) {
    std::vector<float> scaled(bytes ? size_t(run) : 0);
    for (; i < end; ++i) {  // one row of patches
      const int64_t in = ((i / rows) * a.height + (i % rows) * a.patch) * a.width * kChannels;
      for (int64_t c = 0; c < columns; ++c) {
        int64_t at = (i * columns + c) * a.next();
        for (int64_t y = 0; y < a.patch; ++y, at += run) {
          const int64_t first = in + y * a.width * kChannels + c * run;
          const uint8_t* from = bytes ? a.image.u8() + first : nullptr;
          for (size_t k = 0; k < scaled.size(); k += kChannels)
            for (size_t channel = 0; channel < kChannels; ++channel)
              scaled[k + channel] = table.value[channel][from[k + channel]];
          const float* pixels = bytes ? scaled.data() : a.image.f32() + first;
          if (narrow)
            to_bf16(a.patches.bf16() + at, pixels, run);
          else
            std::memcpy(a.patches.f32() + at, pixels, size_t(run) * sizeof(float));
        }
      }
    }
  });
}

}  // namespace kernels
