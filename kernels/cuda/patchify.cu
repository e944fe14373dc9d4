// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of patchify. Warps read along rows of pixels, and write each piece to its row
// of a patch.
#include "kernels/cuda/pixel_value.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/patchify.hpp"

namespace kernels {
namespace {

constexpr int64_t kRgb = 3;

template <class T, class Pixel>
struct PatchifyBody {
  T* patches;
  const Pixel* image;
  PixelRange range;           // of bytes
  int64_t height, image_row;  // of an image: rows of pixels, and elements in each
  int patch;                  // rows of pixels in a patch
  int rows, columns;          // of patches in an image
  int length;                 // elements in a row of pixels of a patch
  int64_t next;               // elements from a patch to the next

  // `row` counts the rows of pixels that belong to patches. A pack is whole and within one patch.
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t column, int64_t) const {
    const int64_t patch_row = row / patch, b = patch_row / rows;
    const int y = int(row - patch_row * patch), r = int(patch_row - b * rows);
    const int c = int(column) / length, k = int(column) - c * length;
    Floats<N> v = load<kAligned, N>(image + (b * height + r * patch + y) * image_row + column, N);
    if constexpr (sizeof(Pixel) == 1) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = pixel_value(range, v[i], (int(column) + i) % int(kRgb));
    }
    store<kAligned>(patches + (patch_row * columns + c) * next + y * length + k, v, N);
  }
};

template <int N, class T, class Pixel>
void take_packs(const PatchifyBody<T, Pixel>& body, int64_t batch, Queue& queue) {
  const int64_t rows = batch * body.rows * body.patch, width = int64_t(body.columns) * body.length;
  const dim3 grid(blocks_for(rows, kRowsPerBlock).x, blocks_for(width, kWarp * N).x);
  launch(each_row<true, N, PatchifyBody<T, Pixel>>, grid, dim3(kRowsPerBlock * kWarp), 0, queue,
         body, rows, width);
}

template <class T, class Pixel>
void take_patches(const Patchify& a, Queue& queue) {
  const int64_t length = a.columns() * kRgb, image_row = a.width * kRgb;
  const PatchifyBody<T, Pixel> body{static_cast<T*>(a.patches.data),
                                    static_cast<const Pixel*>(a.image.data),
                                    a.range,
                                    a.height,
                                    image_row,
                                    int(a.patch),
                                    int(a.height / a.patch),
                                    int(a.width / a.columns()),
                                    int(length),
                                    a.next()};
  const int pack = patchify_pack(length, image_row, a.next(), a.patches, a.image);
  if (pack == 4)
    take_packs<4>(body, a.batch, queue);
  else if (pack == 2)
    take_packs<2>(body, a.batch, queue);
  else
    take_packs<1>(body, a.batch, queue);
}

template <class T>
void take_patches(const Patchify& a, Queue& queue) {
  if (a.image.type == DType::u8)
    take_patches<T, uint8_t>(a, queue);
  else
    take_patches<T, float>(a, queue);
}

}  // namespace

void run_cuda(const Patchify& a, Queue& queue) {
  with_activation(a.patches.type, [&](auto element) { take_patches<decltype(element)>(a, queue); });
}

}  // namespace kernels
