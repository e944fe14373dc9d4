// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of Adafactor's sums of squares over x, over y and over all, and of the
// factors that they give.
#include "kernels/adafactor.hpp"
#include "kernels/cuda/adafactor_tiles.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/partial_sums.cuh"

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

struct TileItem {
  HeldGradient held;
  AdafactorTiles tiles;
  double* scratch;
};

// Sums the squares of one tile: those of each column, of each span in a row, and of the whole tile.
template <bool kAligned>
__global__ void __launch_bounds__(kTileThreads, 4)
    square_tiles(const ManyItems<TileItem> __grid_constant__ all) {
  __shared__ double sums[kTileWarps][AdafactorTiles::kColumns];
  __shared__ BlockShared<double> shared;
  const Share share = share_of_block(all);
  const HeldGradient held = all.items[share.item].held;
  const AdafactorTiles& t = all.items[share.item].tiles;
  double* scratch = all.items[share.item].scratch;
  const int64_t strip = share.block / uint32_t(t.blocks), tile = share.block % uint32_t(t.blocks);
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t block = t.first_block + tile,
                column = strip * AdafactorTiles::kColumns + lane * kTilePack;
  const int64_t first = t.first_row_of(block) > t.first_row ? t.first_row_of(block) : t.first_row;
  const int64_t end_held = t.first_row + t.rows,
                end = t.end_row_of(block) < end_held ? t.end_row_of(block) : end_held;
  const int lanes = int(t.span) / kTilePack;
  double column_squares[kTilePack] = {};
  for (int64_t row = first + warp; row < end; row += kTileWarps) {
    double squares[kTilePack];
    held.squares_from<kAligned>(row * t.width + column, column < t.width, squares);
    double sum = (squares[0] + squares[1]) + (squares[2] + squares[3]);
#pragma unroll
    for (int k = 0; k < kTilePack; ++k) column_squares[k] += squares[k];
    for (int distance = lanes / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane % lanes == 0 && column < t.width)
      scratch[t.pieces() + (row - t.first_row) * t.spans + column / t.span] = sum;
  }
#pragma unroll
  for (int k = 0; k < kTilePack; ++k) sums[warp][lane * kTilePack + k] = column_squares[k];
  __syncthreads();
  double total = 0;
  const int64_t mine = strip * AdafactorTiles::kColumns + threadIdx.x;
  if (int(threadIdx.x) < AdafactorTiles::kColumns) {
    for (int w = 0; w < kTileWarps; ++w) total += sums[w][threadIdx.x];
    if (mine < t.width) scratch[t.columns() + tile * t.width + mine] = total;
  }
  total = block_sum(total, shared);
  if (threadIdx.x == 0) scratch[t.totals() + tile * t.strips + strip] = total;
}

// Second stage after the tiles of a tensor, in three groups of blocks, in this order:
//   over_x += the tiles' sums of a column
//   over_y += the spans' sums of a (row, middle)
//   total = the sum of all tiles
struct TileSums {
  AdafactorTiles tiles;
  const double* scratch;
  double *over_x, *over_y, *total;
  // Outer indices that the view touches, blocks for the columns of each, blocks for all lines.
  int64_t outers, column_blocks, line_blocks;

  static TileSums of(const AdafactorSums& a, double* scratch) {
    const AdafactorTiles t(a.shape, a.begin, a.g.count);
    const int64_t outers = (t.first_row + t.rows - 1) / t.x - t.first_row / t.x + 1;
    return {t,
            scratch,
            a.over_x.f64(),
            a.over_y.f64(),
            a.total.f64(),
            outers,
            base::ceil_div(t.width, kWarp),
            base::ceil_div(t.rows * t.middle, kTileThreads)};
  }
  int64_t blocks() const { return outers * column_blocks + line_blocks + 1; }
};
// Threads that share the tiles of one column in turn.
constexpr int kTileTurns = kTileThreads / kWarp;

__device__ inline void add_to_column(const TileSums& s, int64_t block) {
  __shared__ double sums[kTileTurns][kWarp];
  const AdafactorTiles& t = s.tiles;
  const int lane = int(threadIdx.x) % kWarp, turn = int(threadIdx.x) / kWarp;
  const int64_t column = block % s.column_blocks * kWarp + lane,
                outer = t.first_row / t.x + block / s.column_blocks;
  const int64_t first = outer * t.blocks_per_outer - t.first_block,
                last = first + t.blocks_per_outer;
  const int64_t end = last < t.blocks ? last : t.blocks;
  double sum = 0;
  if (column < t.width)
    for (int64_t b = (first > 0 ? first : 0) + turn; b < end; b += kTileTurns)
      sum += s.scratch[t.columns() + b * t.width + column];
  sums[turn][lane] = sum;
  __syncthreads();
  if (turn != 0 || column >= t.width) return;
  double total = 0;
  for (int k = 0; k < kTileTurns; ++k) total += sums[k][lane];
  s.over_x[outer * t.width + column] += total;
}

__device__ inline void add_to_line(const TileSums& s, int64_t block) {
  const AdafactorTiles& t = s.tiles;
  const int64_t line = block * kTileThreads + threadIdx.x, each = t.group / t.span;
  if (line >= t.rows * t.middle) return;
  const double* from = s.scratch + t.pieces() + line * each;
  double sum = 0;
  for (int64_t p = 0; p < each; ++p) sum += from[p];
  s.over_y[t.first_row * t.middle + line] += sum;
}

__global__ void __launch_bounds__(kTileThreads)
    add_tiles(const ManyItems<TileSums> __grid_constant__ all) {
  __shared__ BlockShared<double> shared;
  const Share share = share_of_block(all);
  const TileSums& s = all.items[share.item];
  const int64_t block = share.block, columns = s.outers * s.column_blocks;
  if (block < columns) return add_to_column(s, block);
  if (block < columns + s.line_blocks) return add_to_line(s, block - columns);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < s.tiles.blocks * s.tiles.strips; i += kTileThreads)
    sum += s.scratch[s.tiles.totals() + i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *s.total = sum;
}

// Sums of shapes that tiles do not fit: a thread per sum over x, a warp per sum over y.
struct AnyItem {
  HeldGradient held;
  Factored shape;
  double *over_x, *over_y, *lines;
};
constexpr int kAnyThreads = 256;
__global__ void __launch_bounds__(kAnyThreads)
    sum_any_over_x(const ManyItems<AnyItem> __grid_constant__ all) {
  const Share share = share_of_block(all);
  const AnyItem& a = all.items[share.item];
  const HeldGradient& held = a.held;
  const Factored& s = a.shape;
  const int64_t width = s.middle * s.y * s.inner,
                i = int64_t(share.block) * kAnyThreads + threadIdx.x;
  if (i >= s.outer * width) return;
  const int64_t outer = i / width, column = i - outer * width;
  double sum = 0;
  for (int64_t x = 0; x < s.x; ++x) {
    const int64_t e = (outer * s.x + x) * width + column;
    if (e < held.begin || e >= held.end) continue;
    const double g = double(held.g[e - held.begin]);
    sum = fma(g, g, sum);
  }
  a.over_x[i] += sum;
}
constexpr int kLineWarps = 4;
__global__ void __launch_bounds__(kLineWarps* kWarp)
    sum_any_over_y(const ManyItems<AnyItem> __grid_constant__ all) {
  const Share share = share_of_block(all);
  const AnyItem& a = all.items[share.item];
  const HeldGradient& held = a.held;
  const Factored& s = a.shape;
  const int64_t i = int64_t(share.block) * kLineWarps + threadIdx.x / kWarp;
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
  if (threadIdx.x % kWarp == 0) {
    a.over_y[i] += sum;
    a.lines[i] = sum;
  }
}

// A moment, the sums that update it, and the factor that it gives.
struct Moment {
  float *v, *factor;
  const double* sums;
  int64_t count;
  double size;  // squares in each sum
};
struct FactorItem {
  Moment normalised, plain;       // R, and C (adafactor.hpp)
  int64_t lines, length, stride;  // R's means are over `length` entries `stride` apart
  double eps;
  float beta2, divisor, factor;
  const float* decided;  // may be null; replaces divisor and factor

  static FactorItem of(const AdafactorFactors& a) {
    const Factored& s = a.shape;
    const Moment x{a.v_over_x.f32(), a.factor_over_x.f32(), a.over_x.f64(), s.over_x(),
                   double(s.x)};
    const Moment y{a.v_over_y.f32(), a.factor_over_y.f32(), a.over_y.f64(), s.over_y(),
                   double(s.y)};
    FactorItem f{.normalised = y,
                 .plain = x,
                 .lines = s.outer * s.middle * s.inner,
                 .length = s.x,
                 .stride = s.middle * s.inner,
                 .eps = double(a.eps),
                 .beta2 = a.beta2,
                 .divisor = a.clip.divisor,
                 .factor = a.clip.factor,
                 .decided = a.clip.decided.none() ? nullptr : a.clip.decided.f32()};
    if (s.x_is_largest) {
      f.normalised = x;
      f.plain = y;
      f.length = s.y;
      f.stride = s.inner;
    }
    return f;
  }
  __device__ float move(const Moment& m, int64_t i) const {
    const double root =
        double(decided ? decided[1] : factor) / double(decided ? decided[0] : divisor);
    if (!decided || decided[2] != 0)
      m.v[i] =
          fmaf(beta2, m.v[i], (1.0f - beta2) * float(fma(m.sums[i], root * root / m.size, eps)));
    return m.v[i];
  }
};

// The first blocks compute one line of R each, the others parts of C.
constexpr int kFactorThreads = 256;
__global__ void __launch_bounds__(kFactorThreads, 4)
    make_factors(const ManyItems<FactorItem> __grid_constant__ all) {
  __shared__ BlockShared<double> shared;
  const Share share = share_of_block(all);
  const FactorItem& a = all.items[share.item];
  const int64_t line = share.block;
  if (line >= a.lines) {
    const int64_t i = (line - a.lines) * kFactorThreads + threadIdx.x;
    if (i < a.plain.count) a.plain.factor[i] = 1.0f / sqrtf(a.move(a.plain, i));
    return;
  }
  const int64_t at = line / a.stride * a.length * a.stride + line % a.stride;
  double sum = 0;
  for (int64_t k = threadIdx.x; k < a.length; k += kFactorThreads)
    sum += double(a.move(a.normalised, at + k * a.stride));
  const float mean = float(block_sum(sum, shared) / double(a.length));
  for (int64_t k = threadIdx.x; k < a.length; k += kFactorThreads) {
    const int64_t i = at + k * a.stride;
    a.normalised.factor[i] = 1.0f / sqrtf(a.normalised.v[i] / mean);
  }
}

}  // namespace

void run_cuda(std::span<const AdafactorSums> all, Queue& queue) {
  auto in_tiles = [](const AdafactorSums& a) {
    return a.g.count > 0 && AdafactorTiles::fit(a.shape);
  };
  auto lines_of = [](const AdafactorSums& a, double*& scratch) {
    return DoublePartials::of(a.total, a.g.count > 0 ? a.shape.over_y() : 0, scratch);
  };
  for_shared_scratch(all, [&](std::span<const AdafactorSums> some, size_t bytes) {
    auto* scratch = static_cast<double*>(queue.scratch(bytes));
    ManyLaunch aligned(square_tiles<true>, kTileThreads, queue),
        other(square_tiles<false>, kTileThreads, queue);
    ManyLaunch any_over_x(sum_any_over_x, kAnyThreads, queue),
        any_over_y(sum_any_over_y, kLineWarps * kWarp, queue);
    double* at = scratch;
    for (const AdafactorSums& a : some) {
      const HeldGradient held{a.g.f32(), a.begin, a.begin + a.g.count};
      if (in_tiles(a)) {
        const AdafactorTiles t(a.shape, a.begin, a.g.count);
        (packs_fit(kTilePack, a.begin, {a.g}) ? aligned : other)
            .add({held, t, at}, t.blocks * t.strips);
        at += t.doubles();
      } else if (const DoublePartials lines = lines_of(a, at); lines.blocks > 0) {
        const AnyItem item{held, a.shape, a.over_x.f64(), a.over_y.f64(), lines.data};
        any_over_x.add(item, base::ceil_div(a.shape.over_x(), kAnyThreads));
        any_over_y.add(item, base::ceil_div(lines.blocks, kLineWarps));
      }
    }
    aligned.start();
    other.start();
    any_over_x.start();
    any_over_y.start();

    ManyLaunch tile_launch(add_tiles, kTileThreads, queue);
    ManyLaunch line_launch(add_double_partials, kSumThreads, queue);
    at = scratch;
    for (const AdafactorSums& a : some) {
      if (in_tiles(a)) {
        const TileSums sums = TileSums::of(a, at);
        tile_launch.add(sums, sums.blocks());
        at += sums.tiles.doubles();
      } else if (const DoublePartials lines = lines_of(a, at); lines.blocks != 1) {
        line_launch.add(lines, lines.sums);
      }
    }
    tile_launch.start();
    line_launch.start();
  });
}

void run_cuda(std::span<const AdafactorFactors> all, Queue& queue) {
  ManyLaunch factors(make_factors, kFactorThreads, queue);
  for (const AdafactorFactors& a : all) {
    const FactorItem f = FactorItem::of(a);
    factors.add(f, f.lines + base::ceil_div(f.plain.count, kFactorThreads));
  }
  factors.start();
}

}  // namespace kernels
