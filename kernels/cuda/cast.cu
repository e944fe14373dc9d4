// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of casts between f32 and 16-bit types.
#include "kernels/cast.hpp"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/many.cuh"

namespace kernels {
namespace {

template <class To, class From>
struct CastBody {
  To* y;
  const From* x;
  template <int N>
  __device__ void run(int64_t i) const {
    Pack<From, N> in = load_pack<N>(x + i);
    Pack<To, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) convert(in.at[k], out.at[k]);
    store_pack(y + i, out);
  }
  // The CPU's rounding gives NaN the same bits.
  static __device__ void convert(float from, loops::Bf16& to) { to = loops::round_to_bf16(from); }
  static __device__ void convert(float from, loops::F16& to) { narrow(from, to); }
  static __device__ void convert(loops::Bf16 from, float& to) { to = loops::to_float(from); }
  static __device__ void convert(loops::F16 from, float& to) { to = widen(from); }
};

constexpr int kCastThreads = 256;

template <class To, class From>
struct CastItem {
  CastBody<To, From> body;
  int64_t count;
};

template <int N, class To, class From>
__global__ void cast_blocks(const ManyItems<CastItem<To, From>> __grid_constant__ all) {
  const Share share = share_of_block(all);
  const CastItem<To, From>& a = all.items[share.item];
  int64_t i = (int64_t(share.block) * kCastThreads + threadIdx.x) * N;
  if (i + N <= a.count)
    a.body.template run<N>(i);
  else
    for (; i < a.count; ++i) a.body.template run<1>(i);
}

// Runs the casts between these types.
template <class To, class From>
void cast(DType to, DType from, std::span<const Cast> all, Queue& queue) {
  ManyLaunch aligned(cast_blocks<8, To, From>, kCastThreads, queue),
      other(cast_blocks<1, To, From>, kCastThreads, queue);
  for (const Cast& a : all) {
    if (a.y.type != to || a.x.type != from) continue;
    const bool fits = packs_fit(8, 0, {a.y, a.x});
    (fits ? aligned : other)
        .add({{static_cast<To*>(a.y.data), static_cast<const From*>(a.x.data)}, a.x.count},
             base::ceil_div(a.x.count, kCastThreads * (fits ? 8 : 1)));
  }
  aligned.start();
  other.start();
}

}  // namespace

void run_cuda(std::span<const Cast> all, Queue& queue) {
  cast<loops::Bf16, float>(DType::bf16, DType::f32, all, queue);
  cast<loops::F16, float>(DType::f16, DType::f32, all, queue);
  cast<float, loops::Bf16>(DType::f32, DType::bf16, all, queue);
  cast<float, loops::F16>(DType::f32, DType::f16, all, queue);
}

}  // namespace kernels
