// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of group normalisation. A warp adds the sums of the channels of one group, in
// a fixed order. norm_rows.cuh has the loop over pixels.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/norm_rows.cuh"
#include "kernels/group_norm.hpp"

namespace kernels {
namespace {

constexpr int kGroupWarps = 4;  // of a block

// The group of channels of an image that a warp has.
struct ChannelGroup {
  int64_t image, first;  // first: its first channel
};
// Returns false in warps that have no group.
__device__ bool find_channel_group(int64_t images, int64_t columns, int64_t of_group,
                                   ChannelGroup& found) {
  const int64_t groups = columns / of_group;
  const int64_t i = int64_t(blockIdx.x) * kGroupWarps + threadIdx.x / kWarp;
  found = {i / groups, i % groups * of_group};
  return i < images * groups;
}

__global__ void __launch_bounds__(kGroupWarps* kWarp)
    form_group_statistics(float* mean, float* rstd, const double* sums, int64_t images,
                          int64_t columns, int64_t of_group, double count, float eps) {
  ChannelGroup group;
  if (!find_channel_group(images, columns, of_group, group)) return;
  const double* x = sums + 2 * group.image * columns + group.first;
  double sum = 0, squares = 0;
  for (int64_t j = threadIdx.x % kWarp; j < of_group; j += kWarp) {
    sum += x[j];
    squares += x[columns + j];
  }
  const double m = warp_sum(sum) / count;
  const double variance = fmax(0.0, warp_sum(squares) / count - m * m);
  const float r = float(1 / sqrt(variance + double(eps)));
  const int64_t at = group.image * columns + group.first;
  for (int64_t j = threadIdx.x % kWarp; j < of_group; j += kWarp) {
    mean[at + j] = float(m);
    rstd[at + j] = r;
  }
}

// Writes slope and offset of each group: dx = g * scale * rstd + x * slope + offset.
__global__ void __launch_bounds__(kGroupWarps* kWarp)
    form_group_slopes(float* slope, float* offset, ColumnValues values, const double* sums,
                      int64_t images, int64_t of_group, double count) {
  const int64_t columns = values.columns;
  ChannelGroup group;
  if (!find_channel_group(images, columns, of_group, group)) return;
  const double* of_g = sums + 2 * group.image * columns + group.first;
  double sum_g = 0, sum_gz = 0;
  for (int64_t j = threadIdx.x % kWarp; j < of_group; j += kWarp) {
    const double scale = values.scale ? double(values.scale[group.first + j]) : 1;
    sum_g += scale * of_g[j];
    sum_gz += scale * of_g[columns + j];
  }
  sum_g = warp_sum(sum_g);
  sum_gz = warp_sum(sum_gz);
  if (threadIdx.x % kWarp != 0) return;
  const int64_t at = group.image * columns + group.first;
  const double rstd = double(values.rstd[at]), steep = rstd * (sum_gz / count);
  const int64_t number = at / of_group;
  slope[number] = float(-rstd * steep);
  offset[number] = float(rstd * (double(values.mean[at]) * steep - sum_g / count));
}

template <class T>
struct GroupNormBody {
  T* dx;
  const T *dy, *x;
  ColumnValues values;
  const float *slope, *offset;  // [images, groups]
  int64_t of_group;
  bool relu;

  template <int N>
  struct Numbers {
    Floats<N> factor, shift, slope, offset;
  };
  template <int N>
  __device__ Numbers<N> numbers(int64_t image, int64_t j, int64_t left) const {
    Numbers<N> n{};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= left) continue;
      n.factor[i] = values.factor(image, j + i);
      n.shift[i] = values.shift(image, j + i, n.factor[i]);
      const int64_t number = (image * values.columns + j + i) / of_group;
      n.slope[i] = slope[number];
      n.offset[i] = offset[number];
    }
    return n;
  }
  template <bool kAligned, int N>
  __device__ void run(const Numbers<N>& n, int64_t at, int64_t left) const {
    const Floats<N> v = load<kAligned, N>(x + at, left);
    Floats<N> g = load<kAligned, N>(dy + at, left);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (relu && fmaf(v[i], n.factor[i], n.shift[i]) <= 0) g[i] = 0;
      g[i] = fmaf(g[i], n.factor[i], fmaf(v[i], n.slope[i], n.offset[i]));
    }
    store<kAligned>(dx + at, g, left);
  }
};

}  // namespace

void run_cuda(const GroupNormStatistics& a, Queue& queue) {
  const int64_t of_group = a.columns / a.groups;
  launch(form_group_statistics, blocks_for(a.images * a.groups, kGroupWarps),
         dim3(kGroupWarps * kWarp), 0, queue, a.mean.f32(), a.rstd.f32(), a.sums.f64(), a.images,
         a.columns, of_group, double(a.rows * of_group), a.eps);
}

void run_cuda(const GroupNormBackward& a, Queue& queue) {
  const int64_t of_group = a.columns / a.groups;
  const ColumnValues values = ColumnValues::of(a.norm, a.columns);
  auto* slope = static_cast<float*>(queue.scratch(cuda_scratch(a)));
  float* offset = slope + a.images * a.groups;
  launch(form_group_slopes, blocks_for(a.images * a.groups, kGroupWarps), dim3(kGroupWarps * kWarp),
         0, queue, slope, offset, values, a.sums.f64(), a.images, of_group,
         double(a.rows * of_group));
  with_activation(a.dx.type, [&](auto element) {
    using T = decltype(element);
    const GroupNormBody<T> body{pointer_of<T>(a.dx),
                                pointer_of<T>(a.dy),
                                pointer_of<T>(a.x),
                                values,
                                slope,
                                offset,
                                of_group,
                                a.relu};
    for_rows_of_groups(body, a.images, a.rows, a.columns, {a.dx, a.dy, a.x}, queue);
  });
}

}  // namespace kernels
