// CUDA form of sums of squares: blocks of elements side by side, then their sums in order. Squares of floats are exact.
#include "base/narrow.hpp"
#include "kernels/block.cuh"
#include "kernels/floats.cuh"
#include "kernels/partial_sums.cuh"
#include "kernels/square_sums.hpp"

namespace kernels {
namespace {

constexpr int kSquareThreads = 256, kSquarePack = 4;
constexpr int64_t kSquareBlock = 16384;  // elements of a block

template <bool kAligned>
__global__ void __launch_bounds__(kSquareThreads) square_blocks(const float* x, int64_t count, double* partial) {
  __shared__ BlockShared<double> shared;
  const int64_t begin = int64_t(blockIdx.x) * kSquareBlock;
  const int64_t end = begin + kSquareBlock < count ? begin + kSquareBlock : count;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = begin + int64_t(threadIdx.x) * kSquarePack; i < end; i += kSquareThreads * kSquarePack) {
    const bool whole = kAligned && i + kSquarePack <= end;
    const Floats<kSquarePack> v = whole ? load<true, kSquarePack>(x + i, 0) : load<false, kSquarePack>(x + i, end - i);
#pragma unroll
    for (int k = 0; k < kSquarePack; ++k) sum = fma(double(v[k]), double(v[k]), sum);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

struct AddSumsBody {
  double* y;
  const double *a, *b;  // either may be null
  template <int N>
  __device__ void run(int64_t i) const {
#pragma unroll
    for (int k = 0; k < N; ++k) y[i + k] = (a ? a[i + k] : 0.0) + (b ? b[i + k] : 0.0);
  }
};

}  // namespace

void run_cuda(const SquareSums& a, Queue& queue) {
  const int64_t blocks = base::ceil_div(a.x.count, kSquareBlock);
  const DoublePartials partial(a.sum, blocks, 1, queue);
  auto* kernel = packs_fit(kSquarePack, 0, {a.x}) ? square_blocks<true> : square_blocks<false>;
  launch(kernel, blocks_for(blocks, 1), dim3(kSquareThreads), 0, queue, a.x.f32(), a.x.count, partial.data());
  partial.add(queue);
}

void run_cuda(const AddSums& args, Queue& queue) {
  const AddSumsBody body{args.y.f64(), args.a.none() ? nullptr : args.a.f64(), args.b.none() ? nullptr : args.b.f64()};
  for_each_element<1>(body, args.y.count, queue, {});
}

}  // namespace kernels
