// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the sums over examples. A block has a slice. Each thread computes an
// example, and one thread adds the examples in order.
#include "kernels/cuda/launch.cuh"
#include "kernels/loss_sums.hpp"

namespace kernels {
namespace {

constexpr int kLossThreads = 128;
struct LossArgs {
  double* sums;
  const float* loss;
  const int32_t* first;
  const float* weights;
  const uint8_t* flags;  // may be null
  int64_t examples, length;
};

__global__ void __launch_bounds__(kLossThreads) sum_examples(LossArgs a) {
  __shared__ double n[kLossThreads], nll[kLossThreads], rows[kLossThreads];
  __shared__ bool second[kLossThreads];
  double* sums = a.sums + int64_t(blockIdx.x) * LossColumns::count;
  if (threadIdx.x == 0)
    for (int i = 0; i < LossColumns::count; ++i) sums[i] = 0;
  const int64_t end = (int64_t(blockIdx.x) + 1) * a.examples;
  for (int64_t begin = end - a.examples; begin < end; begin += kLossThreads) {
    const int64_t b = begin + threadIdx.x;
    if (b < end) {
      const ExampleLoss e = example_loss(a.loss + a.first[b], a.weights + b * a.length, a.length);
      n[threadIdx.x] = e.n;
      nll[threadIdx.x] = e.nll;
      rows[threadIdx.x] = e.rows;
      second[threadIdx.x] = a.flags && a.flags[b] == 0;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int64_t k = 0; k < kLossThreads && begin + k < end; ++k)
        add_example(sums, {n[k], nll[k], rows[k]}, second[k]);
    __syncthreads();
  }
}

}  // namespace

void run_cuda(const LossSums& a, Queue& queue) {
  const LossArgs args{a.sums.f64(),
                      a.loss.f32(),
                      a.first.i32(),
                      a.weights.f32(),
                      a.flags.none() ? nullptr : a.flags.u8(),
                      a.batch / a.slices,
                      a.length};
  launch(sum_examples, blocks_for(a.slices, 1), dim3(kLossThreads), 0, queue, args);
}

}  // namespace kernels
