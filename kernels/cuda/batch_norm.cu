// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of batch normalisation. norm_rows.cuh has its loops over rows. Sums over rows
// are f64: the threads of a block add in order, then the blocks.
#include "kernels/cuda/norm_rows.cuh"

namespace kernels {
namespace {

// ---- forward
template <class T>
struct ForwardBody {
  T* y;
  const T *x, *shortcut;
  ColumnValues own, other;
  bool relu;

  template <int N>
  struct Numbers {
    Floats<N> factor, shift, other_factor, other_shift;
  };
  template <int N>
  __device__ Numbers<N> numbers(int64_t group, int64_t j, int64_t left) const {
    Numbers<N> n{};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= left) continue;
      n.factor[i] = own.factor(group, j + i);
      n.shift[i] = own.shift(group, j + i, n.factor[i]);
      n.other_factor[i] = other.factor(group, j + i);
      n.other_shift[i] = other.shift(group, j + i, n.other_factor[i]);
    }
    return n;
  }
  template <bool kAligned, int N>
  __device__ void run(const Numbers<N>& n, int64_t at, int64_t left) const {
    Floats<N> v = load<kAligned, N>(x + at, left), s{};
    if (shortcut) s = load<kAligned, N>(shortcut + at, left);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      v[i] = fmaf(v[i], n.factor[i], n.shift[i]);
      if (shortcut) v[i] = __fadd_rn(v[i], fmaf(s[i], n.other_factor[i], n.other_shift[i]));
      if (relu && v[i] <= 0) v[i] = 0;
    }
    store<kAligned>(y + at, v, left);
  }
};

// ---- backward
template <class T>
struct BackwardBody {
  T* dx;
  const T *dy, *x;
  ColumnValues values;
  const double* sums;  // [groups, 2, columns], may be null
  double count;
  bool relu;

  template <int N>
  struct Numbers {
    Floats<N> factor, shift, slope, offset;
  };
  template <int N>
  __device__ Numbers<N> numbers(int64_t group, int64_t j, int64_t left) const {
    Numbers<N> n{};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= left) continue;
      const int64_t columns = values.columns;
      n.factor[i] = values.factor(group, j + i);
      n.shift[i] = values.shift(group, j + i, n.factor[i]);
      if (!sums) continue;
      const double of_g = sums[2 * group * columns + j + i] / count,
                   of_gz = sums[(2 * group + 1) * columns + j + i] / count;
      const double steep = double(values.rstd[group * columns + j + i]) * of_gz;
      n.slope[i] = float(-double(n.factor[i]) * steep);
      n.offset[i] = float(double(n.factor[i]) *
                          (double(values.mean[group * columns + j + i]) * steep - of_g));
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

// ---- sums over rows
constexpr int kSumTurns = 8;  // threads of a column

// Two numbers of a column.
struct Two {
  double first, second;
};

// Writes the sums over a block's rows of body.at(part, index, column) to partial [part][block][2]
// [columns]. Threads of one column take its rows in turn.
template <class Body>
__global__ void __launch_bounds__(kWarp* kSumTurns)
    sum_rows(Body body, int64_t rows, int64_t columns, int64_t block_rows, int64_t blocks,
             double* partial) {
  __shared__ Two shared[kSumTurns][kWarp];
  const int64_t j = int64_t(blockIdx.y) * kWarp + threadIdx.x;
  const int64_t part = blockIdx.x / blocks, first = blockIdx.x % blocks * block_rows;
  const int64_t end = first + block_rows < rows ? first + block_rows : rows;
  Two sum{0, 0};
  if (j < columns) {
    const auto numbers = body.numbers(part, j);
    for (int64_t r = first + threadIdx.y; r < end; r += kSumTurns) {
      const Two v = body.at(numbers, (part * rows + r) * columns + j);
      sum.first += v.first;
      sum.second += v.second;
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  for (int t = 1; t < kSumTurns; ++t) {
    sum.first += shared[t][threadIdx.x].first;
    sum.second += shared[t][threadIdx.x].second;
  }
  double* out = partial + int64_t(blockIdx.x) * 2 * columns;
  out[j] = sum.first;
  out[columns + j] = body.factor_of_second(part, j) * sum.second;
}

// sums[part][k] = the sum over the part's blocks, in order, for k < 2 * columns
__global__ void __launch_bounds__(kGroupedRowThreads)
    add_sum_blocks(double* sums, const double* partial, int64_t blocks, int64_t width,
                   int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const double* from = partial + i / width * blocks * width + i % width;
  double sum = 0;
  for (int64_t b = 0; b < blocks; ++b) sum += from[b * width];
  sums[i] = sum;
}

template <class Body>
void sum_parts(const Body& body, const View& sums, int64_t parts, int64_t rows, int64_t columns,
               size_t scratch, Queue& queue) {
  const RowCuts cuts = batch_norm_cuts(rows);
  auto* partial = static_cast<double*>(queue.scratch(scratch));
  launch(sum_rows<Body>, dim3(blocks_for(parts * cuts.count(), 1).x, blocks_for(columns, kWarp).x),
         dim3(kWarp, kSumTurns), 0, queue, body, rows, columns, cuts.block, cuts.count(), partial);
  launch(add_sum_blocks, blocks_for(sums.count, kGroupedRowThreads), dim3(kGroupedRowThreads), 0,
         queue, sums.f64(), partial, cuts.count(), 2 * columns, sums.count);
}

template <class T>
struct SumBody {
  const T* x;
  __device__ int numbers(int64_t, int64_t) const { return 0; }
  __device__ Two at(int, int64_t i) const {
    const double v = double(widen(x[i]));
    return {v, v * v};
  }
  __device__ double factor_of_second(int64_t, int64_t) const { return 1; }
};

template <class T>
struct GradientSumBody {
  T* g;
  const T *dy, *add, *y, *x;
  ColumnValues values;
  int64_t parts_of_group;
  bool relu;

  struct Numbers {
    float mean, factor, shift;
  };
  __device__ Numbers numbers(int64_t part, int64_t j) const {
    const int64_t group = part / parts_of_group;
    const float factor = values.factor(group, j);
    return {values.mean[group * values.columns + j], factor, values.shift(group, j, factor)};
  }
  __device__ Two at(const Numbers& n, int64_t i) const {
    const float v = widen(x[i]);
    float gradient = widen(dy[i]);
    if (add) gradient += widen(add[i]);
    if (y ? widen(y[i]) <= 0 : relu && fmaf(v, n.factor, n.shift) <= 0) gradient = 0;
    if (g) {
      narrow(gradient, g[i]);
      gradient = widen(g[i]);
    }
    return {double(gradient), double(gradient) * double(v - n.mean)};
  }
  __device__ double factor_of_second(int64_t part, int64_t j) const {
    return double(values.rstd[part / parts_of_group * values.columns + j]);
  }
};

// ---- numbers per column
__global__ void __launch_bounds__(kGroupedRowThreads)
    form_statistics(float* mean, float* rstd, double* moments, const double* sums, int64_t groups,
                    int64_t parts, int64_t columns, double count, float eps) {
  const int64_t j = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= columns) return;
  const int64_t of_part = groups / parts;
  double means = 0, variances = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const double m = sums[2 * g * columns + j] / count;
    const double v = fmax(0.0, sums[(2 * g + 1) * columns + j] / count - m * m);
    mean[g * columns + j] = float(m);
    rstd[g * columns + j] = float(1 / sqrt(v + double(eps)));
    if (!moments) continue;
    means += m;
    variances += v * (count / (count - 1));
    if ((g + 1) % of_part) continue;
    double* out = moments + 2 * (g / of_part) * columns;
    out[j] = means;
    out[columns + j] = variances;
    means = variances = 0;
  }
}

__global__ void __launch_bounds__(kGroupedRowThreads)
    take_running(float* mean, float* rstd, const float* running_mean, const float* running_variance,
                 int64_t columns, float eps) {
  const int64_t j = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= columns) return;
  mean[j] = running_mean[j];
  rstd[j] = float(1 / sqrt(double(running_variance[j]) + double(eps)));
}

__global__ void __launch_bounds__(kGroupedRowThreads)
    update_running(float* mean, float* variance, float* batches, const double* moments,
                   int64_t columns, double decay, double weight) {
  const int64_t j = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j == 0 && batches) *batches += 1;
  if (j >= columns) return;
  mean[j] = float(decay * double(mean[j]) + weight * moments[j]);
  variance[j] = float(decay * double(variance[j]) + weight * moments[columns + j]);
}

__global__ void __launch_bounds__(kGroupedRowThreads)
    add_gradients(float* dscale, float* dbias, const double* sums, int64_t parts, int64_t columns,
                  bool add_scale, bool add_bias) {
  const int64_t j = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= columns) return;
  double of_bias = 0, of_scale = 0;
  for (int64_t p = 0; p < parts; ++p) {
    of_bias += sums[2 * p * columns + j];
    of_scale += sums[(2 * p + 1) * columns + j];
  }
  if (dbias) dbias[j] = (add_bias ? dbias[j] : 0.0f) + float(of_bias);
  if (dscale) dscale[j] = (add_scale ? dscale[j] : 0.0f) + float(of_scale);
}

}  // namespace

void run_cuda(const BatchNormSums& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) {
    using T = decltype(element);
    sum_parts(SumBody<T>{pointer_of<T>(a.x)}, a.sums, a.parts, a.rows, a.columns, cuda_scratch(a),
              queue);
  });
}

void run_cuda(const BatchNormStatistics& a, Queue& queue) {
  const dim3 grid = blocks_for(a.columns, kGroupedRowThreads);
  if (a.sums.none())
    return launch(take_running, grid, dim3(kGroupedRowThreads), 0, queue, a.mean.f32(),
                  a.rstd.f32(), a.running_mean.f32(), a.running_variance.f32(), a.columns, a.eps);
  launch(form_statistics, grid, dim3(kGroupedRowThreads), 0, queue, a.mean.f32(), a.rstd.f32(),
         pointer_of<double>(a.moments), a.sums.f64(), a.groups, a.parts, a.columns, double(a.count),
         a.eps);
}

void run_cuda(const BatchNormRunning& a, Queue& queue) {
  launch(update_running, blocks_for(a.columns, kGroupedRowThreads), dim3(kGroupedRowThreads), 0,
         queue, a.mean.f32(), a.variance.f32(), pointer_of<float>(a.batches), a.moments.f64(),
         a.columns, a.decay, a.weight);
}

void run_cuda(const BatchNormForward& a, Queue& queue) {
  with_activation(a.y.type, [&](auto element) {
    using T = decltype(element);
    const ForwardBody<T> body{pointer_of<T>(a.y),
                              pointer_of<T>(a.x),
                              pointer_of<T>(a.shortcut),
                              ColumnValues::of(a.norm, a.columns),
                              ColumnValues::of(a.shortcut_norm, a.columns),
                              a.relu};
    for_rows_of_groups(body, a.groups, a.rows, a.columns, {a.y, a.x, a.shortcut}, queue);
  });
}

void run_cuda(const BatchNormBackwardSums& a, Queue& queue) {
  with_activation(a.dy.type, [&](auto element) {
    using T = decltype(element);
    const GradientSumBody<T> body{pointer_of<T>(a.g),   pointer_of<T>(a.dy),
                                  pointer_of<T>(a.add), pointer_of<T>(a.y),
                                  pointer_of<T>(a.x),   ColumnValues::of(a.norm, a.columns),
                                  a.parts / a.groups,   a.relu};
    sum_parts(body, a.sums, a.parts, a.rows, a.columns, cuda_scratch(a), queue);
  });
}

void run_cuda(const BatchNormBackward& a, Queue& queue) {
  with_activation(a.dx.type, [&](auto element) {
    using T = decltype(element);
    const BackwardBody<T> body{pointer_of<T>(a.dx),
                               pointer_of<T>(a.dy),
                               pointer_of<T>(a.x),
                               ColumnValues::of(a.norm, a.columns),
                               pointer_of<double>(a.sums),
                               double(a.count),
                               a.relu};
    for_rows_of_groups(body, a.groups, a.rows, a.columns, {a.dx, a.dy, a.x}, queue);
  });
}

void run_cuda(const BatchNormGradients& a, Queue& queue) {
  launch(add_gradients, blocks_for(a.columns, kGroupedRowThreads), dim3(kGroupedRowThreads), 0,
         queue, pointer_of<float>(a.dscale), pointer_of<float>(a.dbias), a.sums.f64(), a.parts,
         a.columns, a.scale_write == Write::accumulate, a.bias_write == Write::accumulate);
}

}  // namespace kernels
