// SPDX-License-Identifier: Apache-2.0
// CPU implementation of patchify.
#include "kernels/patchify.hpp"

#include <array>
#include <cstring>
#include <vector>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {
constexpr int64_t kChannels = Patchify::kChannels;

// Returns the value of each byte. Fused multiply-adds would give other bits than the preprocessing
// op value_range, so this file is compiled without (TRAINER_UNFUSED in CMakeLists.txt).
std::array<float, 256> table_of(const PixelRange& r) {
  std::array<float, 256> table;
  for (int byte = 0; byte < 256; ++byte)
    table[size_t(byte)] = r.to_low + (float(byte) - r.low) / r.width * r.to_width;
  return table;
}
}  // namespace

void run_cpu(const Patchify& a, Queue& queue) {
  const bool bytes = a.image.type == DType::u8;
  const std::array<float, 256> table = table_of(a.range);
  bool narrow = a.patches.type == DType::bf16;
  auto to_bf16 = vector_table().to_bf16;
  int64_t rows = a.height / a.patch, columns = a.width / a.columns(), run = a.columns() * kChannels;
  for_ranges(queue, a.batch * rows, a.patches.count, 1, [&](int64_t i, int64_t end) {
    std::vector<float> scaled(bytes ? size_t(run) : 0);
    for (; i < end; ++i) {  // one row of patches
      const int64_t in = ((i / rows) * a.height + (i % rows) * a.patch) * a.width * kChannels;
      int64_t at = i * columns * a.patch * run;
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t y = 0; y < a.patch; ++y, at += run) {
          const int64_t first = in + y * a.width * kChannels + c * run;
          for (size_t k = 0; k < scaled.size(); ++k)
            scaled[k] = table[a.image.u8()[first + int64_t(k)]];
          const float* pixels = bytes ? scaled.data() : a.image.f32() + first;
          if (narrow)
            to_bf16(a.patches.bf16() + at, pixels, run);
          else
            std::memcpy(a.patches.f32() + at, pixels, size_t(run) * sizeof(float));
        }
    }
  });
}

}  // namespace kernels
