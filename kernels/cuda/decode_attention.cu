// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of attention over a cache, a block per head of a query. Warps compute the
// scores of different keys, then threads mix different elements of the values.
#include <cmath>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/floats.cuh"
#include "kernels/decode_attention.hpp"

namespace kernels {
namespace {

constexpr int kDecodeThreads = 128;

template <class T>
struct DecodeTensors {
  T* o;
  const T *q, *k, *v;
  const int32_t *index, *first;
  int heads, head_dim, keys;
  float scale;
};

template <class T>
__global__ void __launch_bounds__(kDecodeThreads) decode_heads(DecodeTensors<T> a) {
  __shared__ BlockShared<float> shared;
  float* weights = dynamic_shared<float>();  // [keys]
  const int64_t row = int64_t(blockIdx.x) / a.heads, width = int64_t(a.heads) * a.head_dim;
  const int64_t head = int64_t(blockIdx.x) % a.heads * a.head_dim;
  const int lane = int(threadIdx.x) % kWarp;
  const int32_t* index = a.index ? a.index + row * a.keys : nullptr;
  int keys = a.keys;
  while (index && keys > 1 && index[keys - 1] < 0) --keys;
  auto element_of_key = [&](int j) {
    const int64_t key = index ? index[j] : a.first[row] + j;
    return key * width + head;
  };
  const T* q = a.q + row * width + head;
  float top = -INFINITY;
  for (int j = int(threadIdx.x) / kWarp; j < keys; j += kDecodeThreads / kWarp) {
    const T* k = a.k + element_of_key(j);
    float sum = 0;
    for (int d = lane; d < a.head_dim; d += kWarp) sum = fmaf(widen(q[d]), widen(k[d]), sum);
    sum = warp_sum(sum) * a.scale;
    if (lane == 0) weights[j] = sum;
    top = fmaxf(top, sum);
  }
  top = block_max(top, shared);
  float total = 0;
  for (int j = int(threadIdx.x); j < keys; j += kDecodeThreads) {
    const float e = expf(weights[j] - top);
    total += e;
    T rounded;
    narrow(e, rounded);
    weights[j] = widen(rounded);
  }
  total = block_sum(total, shared);
  for (int d = int(threadIdx.x); d < a.head_dim; d += kDecodeThreads) {
    float sum = 0;
    for (int j = 0; j < keys; ++j) sum = fmaf(weights[j], widen(a.v[element_of_key(j) + d]), sum);
    narrow(sum / total, a.o[row * width + head + d]);
  }
}

}  // namespace

void run_cuda(const DecodeAttention& a, Queue& queue) {
  with_activation(a.q.type, [&](auto element) {
    using T = decltype(element);
    const DecodeTensors<T> t{.o = static_cast<T*>(a.o.data),
                             .q = static_cast<const T*>(a.q.data),
                             .k = static_cast<const T*>(a.k.data),
                             .v = static_cast<const T*>(a.v.data),
                             .index = static_cast<const int32_t*>(a.index.data),
                             .first = static_cast<const int32_t*>(a.first.data),
                             .heads = int(a.heads),
                             .head_dim = int(a.head_dim),
                             .keys = int(a.keys),
                             .scale = 1 / std::sqrt(float(a.head_dim))};
    launch(decode_heads<T>, blocks_for(a.rows * a.heads, 1), dim3(kDecodeThreads),
           size_t(a.keys) * sizeof(float), queue, t);
  });
}

}  // namespace kernels
