// SPDX-License-Identifier: Apache-2.0
// Direct convolutions: each tile of outputs reads the pixels below the window in place.
#include "kernels/cpu/direct_convolution.hpp"

#include <omp.h>

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/cpu/direct_convolution_rows.hpp"
#include "kernels/cpu/instructions.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

// With fewer input channels oneDNN is faster.
constexpr int64_t kLeastInputs = 32;
// Tiles of a chunk. With up to 256 channels its pixels stay in the second-level cache, beside the
// weights of a tile.
constexpr int64_t kTilesOfChunk = 8, kChunk = kTilesOfChunk * kTilePositions;

int64_t taps_of(const ConvolutionShape& s) {
  return s.window.kernel_height * s.window.kernel_width;
}

// [out, in, taps] -> [out / kTileOutputs, taps, in, kTileOutputs], written by lines of the caches
void pack_weights(const ConvolutionForward& a, float* packed, Queue& queue) {
  const int64_t taps = taps_of(a.shape), in = a.shape.in, panel = in * taps * kTileOutputs;
  for_ranges(queue, a.shape.out / kTileOutputs, a.shape.weights(), 1,
             [&](int64_t begin, int64_t end) {
               for (int64_t p = begin; p < end; ++p)
                 for (int64_t i = 0; i < in; ++i)
                   for (int64_t tap = 0; tap < taps; ++tap) {
                     const float* const from = a.weight.f32() + p * panel + i * taps + tap;
                     float* const to = packed + p * panel + (tap * in + i) * kTileOutputs;
                     for (int64_t o = 0; o < kTileOutputs; ++o) to[o] = from[o * in * taps];
                   }
             });
}

// Finds the pixels below the window at positions from `first` on, as DirectTile::x has them. Pixels
// of the padding, and of positions past the last one, are zeros.
void find_pixels(const ConvolutionForward& a, int64_t first, int64_t positions, const float* zeros,
                 const float** pixels) {
  const Window& w = a.shape.window;
  const int64_t taps = taps_of(a.shape), in = a.shape.in, width = w.out_width(),
                height = w.out_height();
  std::fill_n(pixels, base::round_up(positions, kTilePositions) * taps, zeros);
  for (int64_t i = 0; i < positions; ++i) {
    const int64_t position = first + i, image = position / (height * width),
                  top = position / width % height * w.stride - w.padding,
                  left = position % width * w.stride - w.padding;
    const float** to = pixels + i / kTilePositions * kTilePositions * taps + i % kTilePositions;
    for (int64_t y = top; y < top + w.kernel_height; ++y)
      for (int64_t x = left; x < left + w.kernel_width; ++x, to += kTilePositions)
        if (y >= 0 && y < w.height && x >= 0 && x < w.width)
          *to = a.x.f32() + ((image * w.height + y) * w.width + x) * in;
  }
}

}  // namespace

bool runs_directly(const ConvolutionForward& a) {
  const ConvolutionShape& s = a.shape;
  return vector_table().convolve_tile && !onednn_has_avx512() && a.x.type == DType::f32 &&
         s.groups == 1 && taps_of(s) > 1 && s.in >= kLeastInputs && s.out % kTileOutputs == 0;
}

void run_directly(const ConvolutionForward& a, Queue& queue) {
  const ConvolutionShape& s = a.shape;
  const int64_t taps = taps_of(s), positions = s.window.positions(),
                chunks = base::ceil_div(positions, kChunk), zeros = base::round_up(s.in, 16);
  const int workers = threads_for(queue, s.flops(), chunks);
  char* const room =
      static_cast<char*>(queue.scratch(size_t(s.weights() + zeros) * sizeof(float) +
                                       size_t(workers * kChunk * taps) * sizeof(const float*)));
  float* const weights = reinterpret_cast<float*>(room);
  float* const zero = weights + s.weights();
  auto pixels = reinterpret_cast<const float**>(zero + zeros);
  std::fill_n(zero, zeros, 0.0f);
  pack_weights(a, weights, queue);
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = chunk * kChunk, count = std::min(kChunk, positions - first);
    const float** const own = pixels + omp_get_thread_num() * kChunk * taps;
    find_pixels(a, first, count, zero, own);
    for (int64_t o = 0; o < s.out; o += kTileOutputs)
      for (int64_t i = 0; i < count; i += kTilePositions)
        vector_table().convolve_tile({.y = a.y.f32() + (first + i) * s.out + o,
                                      .x = own + i * taps,
                                      .weight = weights + o * s.in * taps,
                                      .stride = s.out,
                                      .positions = std::min(kTilePositions, count - i),
                                      .taps = taps,
                                      .in = s.in});
  }
}

}  // namespace kernels
