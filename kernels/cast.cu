#include "kernels/cast.hpp"

#include "kernels/elements.cuh"

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
    for (int k = 0; k < N; ++k) out.at[k] = loops::store_as<To>(loops::to_float(in.at[k]));
    store_pack(y + i, out);
  }
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
  else
    cast<float, loops::Bf16>(a, queue);
}

}  // namespace kernels
