#include "kernels/block.cuh"
#include "kernels/launch.cuh"
#include "kernels/launch_shapes.hpp"
#include "kernels/partial_sums.cuh"

namespace kernels {
namespace {

constexpr int kSumThreads = 256;
constexpr int kGroups = 16;  // groups of blocks that are summed side by side

__global__ void __launch_bounds__(kWarp* kGroups)
    add_float_partials(float* out, const float* partial, int64_t blocks, int64_t stride, int64_t columns, bool add) {
  __shared__ float sums[kGroups][kWarp];
  int64_t j = int64_t(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (j < columns)
    for (int64_t b = threadIdx.y; b < blocks; b += kGroups) sum += partial[b * stride + j];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  float total = add ? out[j] : 0;
  for (int g = 0; g < kGroups; ++g) total += sums[g][threadIdx.x];
  out[j] = total;
}

__global__ void __launch_bounds__(kSumThreads) add_double_partials(double* out, const double* partial, int64_t blocks) {
  __shared__ BlockShared<double> shared;
  double sum = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kSumThreads) sum += partial[int64_t(blockIdx.x) * blocks + b];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

}  // namespace

void add_partials(float* out, const float* partial, int64_t blocks, int64_t stride, int64_t columns, Write write,
                  Queue& queue) {
  launch(add_float_partials, blocks_for(columns, kWarp), dim3(kWarp, kGroups), 0, queue, out, partial, blocks, stride,
         columns, write == Write::accumulate);
}

DoublePartials::DoublePartials(const View& out, int64_t blocks, int sums, Queue& queue)
    : out_(out.f64()), data_(out_), blocks_(blocks), sums_(sums) {
  if (blocks != 1) data_ = static_cast<double*>(queue.scratch(size_t(sums * blocks) * sizeof(double)));
}

void DoublePartials::add(Queue& queue) const {
  if (blocks_ != 1)
    launch(add_double_partials, dim3(unsigned(sums_)), dim3(kSumThreads), 0, queue, out_, data_, blocks_);
}

}  // namespace kernels
