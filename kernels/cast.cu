#include "kernels/cast.hpp"

#include "kernels/floats.cuh"

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
  static __device__ void convert(float from, loops::Bf16& to) { to = loops::round_to_bf16(from); }  // NaN as on the CPU
  static __device__ void convert(float from, loops::F16& to) { narrow(from, to); }
  static __device__ void convert(loops::Bf16 from, float& to) { to = loops::to_float(from); }
  static __device__ void convert(loops::F16 from, float& to) { to = widen(from); }
};

template <class To, class From>
void cast(const Cast& a, Queue& queue) {
  for_each_element<8>(CastBody<To, From>{static_cast<To*>(a.y.data), static_cast<const From*>(a.x.data)}, a.x.count, queue,
                      {a.y.data, a.x.data});
}

}  // namespace

void run_cuda(const Cast& a, Queue& queue) {
  if (a.y.type == DType::bf16)
    cast<loops::Bf16, float>(a, queue);
  else if (a.y.type == DType::f16)
    cast<loops::F16, float>(a, queue);
  else if (a.x.type == DType::f16)
    cast<float, loops::F16>(a, queue);
  else
    cast<float, loops::Bf16>(a, queue);
}

}  // namespace kernels
