// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of mixup. A warp has 32 neighbouring packs of one image.
#include "kernels/cuda/pixel_value.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/mix_images.hpp"

namespace kernels {
namespace {

template <class Pixel>
struct MixBody {
  float* y;
  const Pixel* x;
  const float* shares;
  int64_t count, group;
  MixPartner partner;
  const int32_t* boxes;  // may be null
  int64_t row_values;
  PixelRange range;  // of bytes

  template <bool kAligned, int N>
  __device__ Floats<N> read(int64_t example, int64_t column, int64_t left) const {
    Floats<N> v = load<kAligned, N>(x + example * count + column, left);
    if constexpr (sizeof(Pixel) == 1) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = pixel_value(range, v[i], int((column + i) % 3));
    }
    return v;
  }
  __device__ bool in_box(int64_t b, int64_t k) const {
    if (!boxes) return false;
    const int32_t* box = boxes + 4 * b;
    const int64_t row = k / row_values, column = k % row_values / 3;
    return row >= box[0] && row < box[1] && column >= box[2] && column < box[3];
  }
  template <bool kAligned, int N>
  __device__ void run(int64_t b, int64_t column, int64_t left) const {
    const float share = shares[b], rest = 1 - share;
    Floats<N> own = read<kAligned, N>(b, column, left);
    const Floats<N> other = read<kAligned, N>(mix_partner(b, group, partner), column, left);
#pragma unroll
    for (int i = 0; i < N; ++i)
      own[i] = in_box(b, column + i)
                   ? other[i]
                   : __fadd_rn(__fmul_rn(share, own[i]), __fmul_rn(rest, other[i]));
    store<kAligned>(y + b * count + column, own, left);
  }
};

template <class Pixel>
void mix(const MixImages& a, Queue& queue) {
  const MixBody<Pixel> body{.y = a.y.f32(),
                            .x = static_cast<const Pixel*>(a.x.data),
                            .shares = a.shares.f32(),
                            .count = a.count,
                            .group = a.group,
                            .partner = a.partner,
                            .boxes = a.boxes.none() ? nullptr : a.boxes.i32(),
                            .row_values = a.row_values,
                            .range = a.range};
  for_each_row<4>(body, a.batch, a.count, packs_fit(4, a.count, {a.y, a.x}), queue);
}

}  // namespace

void run_cuda(const MixImages& a, Queue& queue) {
  if (a.x.type == DType::u8)
    mix<uint8_t>(a, queue);
  else
    mix<float>(a, queue);
}

}  // namespace kernels
