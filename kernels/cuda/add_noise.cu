// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of noise.
#include "kernels/add_noise.hpp"
#include "kernels/cuda/many.cuh"
#include "kernels/cuda/philox.cuh"

namespace kernels {
namespace {

constexpr int kNoiseThreads = 256;
struct NoiseItem {
  float* y;
  const float* x;
  base::Stream stream;
  int64_t begin, count;
  float std;
};

__global__ void __launch_bounds__(kNoiseThreads)
    noise_blocks(const ManyItems<NoiseItem> __grid_constant__ all) {
  const Share share = share_of_block(all);
  const NoiseItem& a = all.items[share.item];
  const int64_t i = int64_t(share.block) * kNoiseThreads + threadIdx.x;
  if (i < a.count)
    a.y[i] = a.x[i] + float(double(a.std) * normal_draw(a.stream, uint64_t(a.begin + i)));
}

}  // namespace

void run_cuda(std::span<const AddNoise> all, Queue& queue) {
  ManyLaunch noise(noise_blocks, kNoiseThreads, queue);
  for (const AddNoise& a : all)
    noise.add({a.y.f32(), a.x.f32(), a.stream, a.begin, a.y.count, a.std},
              (a.y.count + kNoiseThreads - 1) / kNoiseThreads);
  noise.start();
}

}  // namespace kernels
