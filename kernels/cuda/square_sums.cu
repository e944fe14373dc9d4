// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of sums of squares. Blocks of elements are summed in parallel, then their
// sums are added in order. Squares of floats are exact in double.
#include "base/narrow.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/partial_sums.cuh"
#include "kernels/square_sums.hpp"

namespace kernels {
namespace {

constexpr int kSquareThreads = 256, kSquarePack = 4;

struct SquareItem {
  const float* x;
  int64_t count;
  double* partial;
};

template <bool kAligned>
__global__ void __launch_bounds__(kSquareThreads)
    square_blocks(const ManyItems<SquareItem> __grid_constant__ all) {
  __shared__ BlockShared<double> shared;
  const Share share = share_of_block(all);
  const auto [x, count, partial] = all.items[share.item];
  const int64_t begin = int64_t(share.block) * kSquareCudaBlock;
  const int64_t end = begin + kSquareCudaBlock < count ? begin + kSquareCudaBlock : count;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = begin + int64_t(threadIdx.x) * kSquarePack; i < end;
       i += kSquareThreads * kSquarePack) {
    const bool whole = kAligned && i + kSquarePack <= end;
    const Floats<kSquarePack> v =
        whole ? load<true, kSquarePack>(x + i, 0) : load<false, kSquarePack>(x + i, end - i);
#pragma unroll
    for (int k = 0; k < kSquarePack; ++k) sum = fma(double(v[k]), double(v[k]), sum);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[share.block] = sum;
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

void run_cuda(std::span<const SquareSums> all, Queue& queue) {
  auto partials_of = [](const SquareSums& a, double*& scratch) {
    return DoublePartials::of(a.sum, base::ceil_div(a.x.count, kSquareCudaBlock), scratch);
  };
  for_shared_scratch(all, [&](std::span<const SquareSums> some, size_t bytes) {
    auto* scratch = static_cast<double*>(queue.scratch(bytes));
    ManyLaunch aligned(square_blocks<true>, kSquareThreads, queue),
        other(square_blocks<false>, kSquareThreads, queue);
    double* at = scratch;
    for (const SquareSums& a : some) {
      const DoublePartials p = partials_of(a, at);
      (packs_fit(kSquarePack, 0, {a.x}) ? aligned : other)
          .add({a.x.f32(), a.x.count, p.data}, p.blocks);
    }
    aligned.start();
    other.start();
    add_partials_of(some, scratch, queue, partials_of);
  });
}

void run_cuda(const AddSums& args, Queue& queue) {
  const AddSumsBody body{args.y.f64(), args.a.none() ? nullptr : args.a.f64(),
                         args.b.none() ? nullptr : args.b.f64()};
  for_each_element<1>(body, args.y.count, queue, {});
}

}  // namespace kernels
