// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of mixup. A warp has 32 neighbouring packs of one image.
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
  PixelRange range;  // of bytes

  template <bool kAligned, int N>
  __device__ Floats<N> read(int64_t example, int64_t column, int64_t left) const {
    Floats<N> v = load<kAligned, N>(x + example * count + column, left);
    if constexpr (sizeof(Pixel) == 1) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        v[i] = __fadd_rn(range.to_low, __fmul_rn((v[i] - range.low) / range.width, range.to_width));
    }
    return v;
  }
  template <bool kAligned, int N>
  __device__ void run(int64_t b, int64_t column, int64_t left) const {
    const float share = shares[b], rest = 1 - share;
    Floats<N> own = read<kAligned, N>(b, column, left);
    const Floats<N> other = read<kAligned, N>(mix_partner(b, group), column, left);
#pragma unroll
    for (int i = 0; i < N; ++i)
      own[i] = __fadd_rn(__fmul_rn(share, own[i]), __fmul_rn(rest, other[i]));
    store<kAligned>(y + b * count + column, own, left);
  }
};

template <class Pixel>
void mix(const MixImages& a, Queue& queue) {
  const MixBody<Pixel> body{
      a.y.f32(), static_cast<const Pixel*>(a.x.data), a.shares.f32(), a.count, a.group, a.range};
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
