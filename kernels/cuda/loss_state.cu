// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the updates of losses' states.
#include "kernels/cuda/elements.cuh"
#include "kernels/loss_state.hpp"

namespace kernels {
namespace {

struct MeanBody {
  float* mean;
  const double* totals;
  double count, keep;
  template <int N>
  __device__ void run(int64_t i) const {
#pragma unroll
    for (int k = 0; k < N; ++k)
      mean[i + k] = float(keep * double(mean[i + k]) + (1 - keep) * (totals[i + k] / count));
  }
};

struct PlacesBody {
  int32_t* index;
  const float* place;
  int64_t size;
  template <int N>
  __device__ void run(int64_t i) const {
#pragma unroll
    for (int k = 0; k < N; ++k) index[i + k] = int32_t((int64_t(*place) + i + k) % size);
  }
};

__global__ void move_place(float* place, int64_t count, int64_t size) {
  *place = float((int64_t(*place) + count) % size);
}

}  // namespace

void run_cuda(const MovingMean& a, Queue& queue) {
  const MeanBody body{a.mean.f32(), a.totals.f64(), a.count, double(a.momentum)};
  for_each_element<1>(body, a.mean.count, queue, {});
}

void run_cuda(const QueuePlaces& a, Queue& queue) {
  const PlacesBody body{a.index.i32(), a.place.f32(), a.size};
  for_each_element<1>(body, a.count, queue, {});
  launch(move_place, dim3(1), dim3(1), 0, queue, a.place.f32(), a.count, a.size);
}

}  // namespace kernels
