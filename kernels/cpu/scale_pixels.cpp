// SPDX-License-Identifier: Apache-2.0
// CPU implementation of scale_pixels.
#include "kernels/scale_pixels.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/pixel_table.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

void look_up(float* y, const uint8_t* x, int64_t count, const PixelTable& table) {
  for (int64_t i = 0; i < count; i += 3)
    for (int64_t c = 0; c < 3; ++c) y[i + c] = table.value[c][x[i + c]];
}

void round_bytes(uint16_t* y, const uint8_t* x, int64_t count, const PixelTable& table) {
  constexpr int64_t kPiece = 768;  // values, whole pixels
  float values[kPiece];
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t n = std::min(kPiece, count - i);
    look_up(values, x + i, n, table);
    vector_table().to_bf16(y + i, values, n);
  }
}

}  // namespace

void run_cpu(const ScalePixels& a, Queue& queue) {
  const bool narrow = a.y.type == DType::bf16, bytes = a.x.type == DType::u8;
  CHECK(narrow || a.y.type == DType::f32, "only GPUs have activations of {}",
        device::name_of(a.y.type));
  const PixelTable table(a.range);
  constexpr int64_t kUnit = 192;  // whole pixels, and whole lines of the cache in y
  for_ranges(queue, a.y.count, a.y.count, kUnit, [&](int64_t i, int64_t end) {
    if (bytes && narrow)
      round_bytes(a.y.bf16() + i, a.x.u8() + i, end - i, table);
    else if (bytes)
      look_up(a.y.f32() + i, a.x.u8() + i, end - i, table);
    else if (narrow)
      vector_table().to_bf16(a.y.bf16() + i, a.x.f32() + i, end - i);
    else
      std::memcpy(a.y.f32() + i, a.x.f32() + i, size_t(end - i) * sizeof(float));
  });
}

}  // namespace kernels
