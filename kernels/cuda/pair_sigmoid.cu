// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the sigmoid loss of pairs. A block has a row.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/pair_sigmoid.hpp"

namespace kernels {
namespace {

constexpr int kPairThreads = 256;

__global__ void __launch_bounds__(kPairThreads)
    pair_sigmoid(float* cosines, const float* t, const float* b, float* loss, float* dt, float* db,
                 const float* loss_scale, int64_t columns, int64_t first, float scale) {
  __shared__ BlockShared<double> sums;
  const int64_t r = int64_t(blockIdx.x);
  const double temperature = exp(double(*t)), bias = double(*b),
               factor = double(scale) * (loss_scale ? double(*loss_scale) : 1.0);
  float* x = cosines + r * columns;
  double own = 0, along = 0, total = 0;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const double cosine = double(x[c]), sign = c == first + r ? 1.0 : -1.0;
    const double z = sign * (temperature * cosine + bias);
    const double tail = exp(-fabs(z));
    const double d = -sign * (z > 0 ? tail : 1.0) / (1 + tail);
    own += (z < 0 ? -z : 0.0) + log1p(tail);
    along += d * cosine;
    total += d;
    x[c] = float(factor * temperature * d);
  }
  own = block_sum(own, sums);
  along = block_sum(along, sums);
  total = block_sum(total, sums);
  if (threadIdx.x != 0) return;
  if (loss) loss[r] = float(own);
  if (dt) dt[r] = float(factor * temperature * along);
  if (db) db[r] = float(factor * total);
}

float* pointer(const View& v) { return v.none() ? nullptr : v.f32(); }

}  // namespace

void run_cuda(const PairSigmoid& a, Queue& queue) {
  launch(pair_sigmoid, blocks_for(a.rows, 1), dim3(kPairThreads), 0, queue, a.cosines.f32(),
         a.t.f32(), a.b.f32(), pointer(a.loss), pointer(a.dt), pointer(a.db), pointer(a.loss_scale),
         a.columns, a.first, a.scale);
}

}  // namespace kernels
