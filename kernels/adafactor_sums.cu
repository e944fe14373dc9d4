// CUDA forms of Adafactor's sums of squares over x, over y and over everything, and of the factors made of them.
#include "kernels/adafactor.hpp"
#include "kernels/adafactor_tiles.hpp"
#include "kernels/block.cuh"
#include "kernels/floats.cuh"
#include "kernels/partial_sums.cuh"

namespace kernels {
namespace {

constexpr int kTileWarps = 8, kTileThreads = kTileWarps * kWarp, kTilePack = 4;

// The elements that the view holds.
struct HeldGradient {
  const float* g;  // of element `begin`
  int64_t begin, end;
  template <bool kAligned>
  __device__ void squares_from(int64_t e, bool inside, double (&squares)[kTilePack]) const {
    Floats<kTilePack> v{};
    if (inside && kAligned && e >= begin && e + kTilePack <= end) {
      v = load<true, kTilePack>(g + (e - begin), 0);
    } else if (inside) {
#pragma unroll
      for (int k = 0; k < kTilePack; ++k)
        if (e + k >= begin && e + k < end) v[k] = g[e + k - begin];
    }
#pragma unroll
    for (int k = 0; k < kTilePack; ++k) squares[k] = double(v[k]) * double(v[k]);
  }
};

// One tile: its columns' sums over its rows, each span's sum, and all of it.
template <bool kAligned>
__global__ void __launch_bounds__(kTileThreads, 4) square_tiles(HeldGradient held, AdafactorTiles t, double* scratch) {
  __shared__ double sums[kTileWarps][AdafactorTiles::kColumns];
  __shared__ BlockShared<double> shared;
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t block = t.first_block + blockIdx.x,
                column = int64_t(blockIdx.y) * AdafactorTiles::kColumns + lane * kTilePack;
  const int64_t first = t.first_row_of(block) > t.first_row ? t.first_row_of(block) : t.first_row;
  const int64_t end_held = t.first_row + t.rows, end = t.end_row_of(block) < end_held ? t.end_row_of(block) : end_held;
  const int lanes = int(t.span) / kTilePack;
  double of_columns[kTilePack] = {};
  for (int64_t row = first + warp; row < end; row += kTileWarps) {
    double squares[kTilePack];
    held.squares_from<kAligned>(row * t.width + column, column < t.width, squares);
    double sum = (squares[0] + squares[1]) + (squares[2] + squares[3]);
#pragma unroll
    for (int k = 0; k < kTilePack; ++k) of_columns[k] += squares[k];
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane % lanes == 0 && column < t.width)
      scratch[t.pieces() + (row - t.first_row) * t.spans + column / t.span] = sum;
  }
#pragma unroll
  for (int k = 0; k < kTilePack; ++k) sums[warp][lane * kTilePack + k] = of_columns[k];
  __syncthreads();
  double total = 0;
  const int64_t mine = int64_t(blockIdx.y) * AdafactorTiles::kColumns + threadIdx.x;
  if (int(threadIdx.x) < AdafactorTiles::kColumns) {
    for (int w = 0; w < kTileWarps; ++w) total += sums[w][threadIdx.x];
    if (mine < t.width) scratch[t.columns() + blockIdx.x * t.width + mine] = total;
  }
  total = block_sum(total, shared);
  if (threadIdx.x == 0) scratch[t.totals() + int64_t(blockIdx.x) * t.strips + blockIdx.y] = total;
}

// over_y += the sums of each (row, middle)'s spans, in order.
__global__ void __launch_bounds__(256) add_spans(AdafactorTiles t, const double* scratch, double* over_y) {
  const int64_t line = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, each = t.group / t.span;
  if (line >= t.rows * t.middle) return;
  const double* from = scratch + t.pieces() + line * each;
  double sum = 0;
  for (int64_t p = 0; p < each; ++p) sum += from[p];
  over_y[t.first_row * t.middle + line] += sum;
}

// over_x += the sums of the tiles of one outer index: some threads take turns with the tiles of a column.
constexpr int kTileTurns = 8;
__global__ void __launch_bounds__(kWarp* kTileTurns)
    add_tiles_over_x(AdafactorTiles t, const double* scratch, double* over_x) {
  __shared__ double sums[kTileTurns][kWarp];
  const int64_t column = int64_t(blockIdx.x) * kWarp + threadIdx.x;
  const int64_t outer = t.first_row / t.x + blockIdx.y;
  const int64_t first = outer * t.blocks_per_outer - t.first_block, last = first + t.blocks_per_outer;
  const int64_t end = last < t.blocks ? last : t.blocks;
  double sum = 0;
  if (column < t.width)
    for (int64_t b = (first > 0 ? first : 0) + threadIdx.y; b < end; b += kTileTurns)
      sum += scratch[t.columns() + b * t.width + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= t.width) return;
  double total = 0;
  for (int turn = 0; turn < kTileTurns; ++turn) total += sums[turn][threadIdx.x];
  over_x[outer * t.width + column] += total;
}

// Any shape: a thread per sum over x, a warp per sum over y.
__global__ void __launch_bounds__(256) sum_any_over_x(HeldGradient held, Factored s, double* over_x) {
  const int64_t width = s.middle * s.y * s.inner, i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= s.outer * width) return;
  const int64_t outer = i / width, column = i - outer * width;
  double sum = 0;
  for (int64_t x = 0; x < s.x; ++x) {
    const int64_t e = (outer * s.x + x) * width + column;
    if (e < held.begin || e >= held.end) continue;
    const double g = double(held.g[e - held.begin]);
    sum = fma(g, g, sum);
  }
  over_x[i] += sum;
}
constexpr int kLineWarps = 4;
__global__ void __launch_bounds__(kLineWarps* kWarp)
    sum_any_over_y(HeldGradient held, Factored s, double* over_y, double* lines) {
  const int64_t i = int64_t(blockIdx.x) * kLineWarps + threadIdx.x / kWarp;
  if (i >= s.outer * s.x * s.middle * s.inner) return;
  const int64_t line = i / s.inner, first = line * s.y * s.inner + i % s.inner;
  double sum = 0;
  for (int64_t y = threadIdx.x % kWarp; y < s.y; y += kWarp) {
    const int64_t e = first + y * s.inner;
    if (e < held.begin || e >= held.end) continue;
    const double g = double(held.g[e - held.begin]);
    sum = fma(g, g, sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) over_y[i] += sum, lines[i] = sum;
}

void sum_tiles(const AdafactorSums& a, const HeldGradient& held, Queue& queue) {
  const AdafactorTiles t(a.shape, a.begin, a.g.count);
  auto* scratch = static_cast<double*>(queue.scratch(size_t(t.doubles()) * sizeof(double)));
  const bool aligned = packs_fit(kTilePack, a.begin, {a.g});
  auto* kernel = aligned ? square_tiles<true> : square_tiles<false>;
  launch(kernel, dim3(blocks_for(t.blocks, 1).x, unsigned(t.strips)), dim3(kTileThreads), 0, queue, held, t, scratch);
  launch(add_spans, blocks_for(t.rows * t.middle, 256), dim3(256), 0, queue, t, scratch, a.over_y.f64());
  const int64_t outers = (t.first_row + t.rows - 1) / t.x - t.first_row / t.x + 1;
  launch(add_tiles_over_x, dim3(blocks_for(t.width, kWarp).x, unsigned(outers)), dim3(kWarp, kTileTurns), 0, queue, t,
         scratch, a.over_x.f64());
  add_partials(a.total.f64(), scratch + t.totals(), t.blocks * t.strips, 1, queue);
}

// What the factors are made of and go to; x_is_largest: R is the moment over x, with means over y.
struct FactorArgs {
  float *v_over_x, *v_over_y, *factor_over_x, *factor_over_y;
  const double *over_x, *over_y;
  int64_t count_x, count_y;
  double size_x, size_y, eps;
  float divisor, factor;
  const float* decided;  // may be null; stands for them: divisor, factor, apply
  float beta2;
  bool x_is_largest;
};

// Both moments move on; the factor that has no mean follows at once.
__global__ void __launch_bounds__(256) move_moments(FactorArgs a) {
  int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.count_x + a.count_y) return;
  const bool of_x = i < a.count_x;
  if (!of_x) i -= a.count_x;
  float& v = (of_x ? a.v_over_x : a.v_over_y)[i];
  const double root = double(a.decided ? a.decided[1] : a.factor) / double(a.decided ? a.decided[0] : a.divisor);
  const double sum = (of_x ? a.over_x : a.over_y)[i], mean_of = root * root / (of_x ? a.size_x : a.size_y);
  if (!a.decided || a.decided[2] != 0) v = fmaf(a.beta2, v, (1.0f - a.beta2) * float(fma(sum, mean_of, a.eps)));
  if (of_x != a.x_is_largest) (of_x ? a.factor_over_x : a.factor_over_y)[i] = 1.0f / sqrtf(v);
}

// factor = (v / mean)^-1/2: a block per line of `length` entries `stride` apart.
__global__ void __launch_bounds__(256) normalise_lines(const float* v, float* factor, int64_t length, int64_t stride) {
  __shared__ BlockShared<double> shared;
  const int64_t line = blockIdx.x, at = line / stride * length * stride + line % stride;
  double sum = 0;
  for (int64_t k = threadIdx.x; k < length; k += blockDim.x) sum += double(v[at + k * stride]);
  const float mean = float(block_sum(sum, shared) / double(length));
  for (int64_t k = threadIdx.x; k < length; k += blockDim.x)
    factor[at + k * stride] = 1.0f / sqrtf(v[at + k * stride] / mean);
}

}  // namespace

void run_cuda(const AdafactorSums& a, Queue& queue) {
  if (a.g.count == 0) return add_partials(a.total.f64(), nullptr, 0, 1, queue);
  const HeldGradient held{a.g.f32(), a.begin, a.begin + a.g.count};
  if (AdafactorTiles::fit(a.shape)) return sum_tiles(a, held, queue);
  const int64_t lines = a.shape.over_y();
  auto* of_lines = static_cast<double*>(queue.scratch(size_t(lines) * sizeof(double)));
  launch(sum_any_over_x, blocks_for(a.shape.over_x(), 256), dim3(256), 0, queue, held, a.shape, a.over_x.f64());
  launch(sum_any_over_y, blocks_for(lines, kLineWarps), dim3(kLineWarps * kWarp), 0, queue, held, a.shape,
         a.over_y.f64(), of_lines);
  add_partials(a.total.f64(), of_lines, lines, 1, queue);
}

void run_cuda(const AdafactorFactors& a, Queue& queue) {
  const Factored& s = a.shape;
  const FactorArgs f{
      a.v_over_x.f32(), a.v_over_y.f32(), a.factor_over_x.f32(), a.factor_over_y.f32(), a.over_x.f64(), a.over_y.f64(),
      s.over_x(),       s.over_y(),       double(s.x),           double(s.y),           double(a.eps),  a.clip.divisor,
      a.clip.factor,    a.clip.decided.none() ? nullptr : a.clip.decided.f32(),         a.beta2,        s.x_is_largest};
  launch(move_moments, blocks_for(f.count_x + f.count_y, 256), dim3(256), 0, queue, f);
  if (s.x_is_largest)
    launch(normalise_lines, blocks_for(s.outer * s.middle * s.inner, 1), dim3(256), 0, queue, f.v_over_x,
           f.factor_over_x, s.y, s.inner);
  else
    launch(normalise_lines, blocks_for(s.outer * s.middle * s.inner, 1), dim3(256), 0, queue, f.v_over_y,
           f.factor_over_y, s.x, s.middle * s.inner);
}

}  // namespace kernels
