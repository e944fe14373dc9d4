// SPDX-License-Identifier: Apache-2.0
// CPU implementation of Adafactor's sums of squares over x and over y, in one pass, and of the
// factors that they give.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fused.hpp"
#include "base/narrow.hpp"
#include "kernels/adafactor.hpp"
#include "kernels/cpu/square_sum_loop.hpp"

namespace kernels {
namespace {

constexpr int64_t kRows = 64;  // rows of a tile
// Columns of a tile. Its column sums stay in the first-level cache.
constexpr int64_t kColumns = 1024;

// Cuts a tensor into tiles, each a block of rows by a strip of columns. A row is all that belongs
// to one (outer, x): `middle` groups of y * inner elements. A strip holds whole groups, or a part
// of one wide group, so that each piece of a row adds to one sum over y.
struct Tiling {
  explicit Tiling(const Factored& s) : group(s.y * s.inner), width(s.middle * group), x(s.x) {
    blocks_per_outer = base::ceil_div(x, kRows);
    if (s.inner == 1 && group > kColumns) {
      strip_width = kColumns;
      pieces_per_group = base::ceil_div(group, kColumns);
      groups_per_strip = 0;
      strips = s.middle * pieces_per_group;
    } else {
      groups_per_strip = std::max<int64_t>(1, kColumns / group);
      pieces_per_group = 1;
      strip_width = groups_per_strip * group;
      strips = base::ceil_div(s.middle, groups_per_strip);
    }
    pieces_per_row = s.middle * pieces_per_group;
  }
  int64_t block_of_row(int64_t row) const { return row / x * blocks_per_outer + row % x / kRows; }
  int64_t first_row(int64_t block) const {
    return block / blocks_per_outer * x + block % blocks_per_outer * kRows;
  }
  int64_t end_row(int64_t block) const {
    return std::min(first_row(block) + kRows, (block / blocks_per_outer + 1) * x);
  }
  // Finds the columns [first, end) of a strip, and its first piece.
  void strip(int64_t s, int64_t& first, int64_t& end, int64_t& piece) const {
    if (groups_per_strip) {
      first = s * strip_width;
      end = std::min(first + strip_width, width);
      piece = s * groups_per_strip;
    } else {
      first = s / pieces_per_group * group + s % pieces_per_group * kColumns;
      end = std::min(first + kColumns, (s / pieces_per_group + 1) * group);
      piece = s;
    }
  }

  int64_t group, width, x;
  int64_t blocks_per_outer, strips, strip_width, groups_per_strip, pieces_per_group, pieces_per_row;
};

// Adds the squares of one piece to sums over x (columns) and over y. The sums over y of a group are
// `inner` numbers.
void add_piece(const float* g, int64_t column, int64_t n, int64_t inner, double* columns,
               double* sums) {
  if (inner == 1) {
    *sums += loops::square_sum_columns(g, columns, n);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const double d = double(g[i]);
    double& sum = sums[(column + i) % inner];
    columns[i] = base::fused(d, d, columns[i]);
    sum = base::fused(d, d, sum);
  }
}

}  // namespace

void run_cpu(const AdafactorSums& a, Queue& queue) {
  *a.total.f64() = 0;
  if (a.g.count == 0) return;
  const Tiling t(a.shape);
  const int64_t inner = a.shape.inner, end = a.begin + a.g.count;
  const int64_t first_row = a.begin / t.width, last_row = (end - 1) / t.width;
  const int64_t first_block = t.block_of_row(first_row),
                blocks = t.block_of_row(last_row) - first_block + 1;
  const int64_t rows = last_row - first_row + 1, row_sums = t.pieces_per_row * inner;
  const float* g = a.g.f32() - a.begin;
  auto* columns = static_cast<double*>(
      queue.scratch(size_t(blocks * t.width + rows * row_sums) * sizeof(double)));
  double* pieces = columns + blocks * t.width;

#pragma omp parallel for collapse(2) schedule(static) \
    num_threads(queue.threads()) if (a.g.count > kRows * kColumns / 4)
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t s = 0; s < t.strips; ++s) {
      int64_t strip_first, strip_end, first_piece;
      t.strip(s, strip_first, strip_end, first_piece);
      double* column = columns + b * t.width;
      std::fill(column + strip_first, column + strip_end, 0.0);
      const int64_t row_end = std::min(t.end_row(first_block + b), last_row + 1);
      for (int64_t row = std::max(t.first_row(first_block + b), first_row); row < row_end; ++row) {
        // [held_first, held_end) is the part of this row that the view holds.
        const int64_t held_first = std::max(a.begin - row * t.width, int64_t{0});
        const int64_t held_end = std::min(end - row * t.width, t.width);
        double* sums = pieces + (row - first_row) * row_sums + first_piece * inner;
        for (int64_t c = strip_first; c < strip_end; sums += inner) {
          const int64_t piece_end = std::min(strip_end, (c / t.group + 1) * t.group);
          const int64_t from = std::max(c, held_first), to = std::min(piece_end, held_end);
          std::fill_n(sums, inner, 0.0);
          if (from < to)
            add_piece(g + row * t.width + from, from, to - from, inner, column + from, sums);
          c = piece_end;
        }
      }
    }

  double* over_y = a.over_y.f64();
#pragma omp parallel for schedule(static) num_threads(queue.threads()) if (rows * row_sums > 16384)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t m = 0; m < a.shape.middle; ++m)
      for (int64_t i = 0; i < inner; ++i) {
        double sum = 0;
        for (int64_t p = 0; p < t.pieces_per_group; ++p)
          sum += pieces[row * row_sums + (m * t.pieces_per_group + p) * inner + i];
        over_y[((first_row + row) * a.shape.middle + m) * inner + i] += sum;
      }
  double* over_x = a.over_x.f64();
#pragma omp parallel for schedule(static) num_threads(queue.threads()) if (blocks * t.width > 16384)
  for (int64_t first = 0; first < t.width; first += kColumns)
    for (int64_t b = 0; b < blocks; ++b) {
      double* into = over_x + (first_block + b) / t.blocks_per_outer * t.width;
      const double* from = columns + b * t.width;
      for (int64_t c = first; c < std::min(first + kColumns, t.width); ++c) into[c] += from[c];
    }
  *a.total.f64() = loops::plain_sum(pieces, rows * row_sums);
}

namespace {

void move_moment(float* v, const double* sums, int64_t n, double mean_of, float beta2, double eps,
                 int threads) {
  const float add = 1.0f - beta2;
#pragma omp parallel for simd schedule(static) num_threads(threads) if (n > 16384)
  for (int64_t i = 0; i < n; ++i)
    v[i] = base::fused(beta2, v[i], add * float(base::fused(sums[i], mean_of, eps)));
}

// factor = (v / mean)^-1/2 for each of batch * stride lines. The mean of a line runs over `length`
// entries that are `stride` apart.
void normalised_factor(const float* v, float* factor, int64_t batch, int64_t length,
                       int64_t stride) {
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < stride; ++i) {
      const float* line = v + b * length * stride + i;
      double sum = 0;
      for (int64_t k = 0; k < length; ++k) sum += double(line[k * stride]);
      const float mean = float(sum / double(length));
      float* out = factor + b * length * stride + i;
      for (int64_t k = 0; k < length; ++k)
        out[k * stride] = 1.0f / std::sqrt(line[k * stride] / mean);
    }
}

void plain_factor(const float* v, float* factor, int64_t n, int threads) {
#pragma omp parallel for simd schedule(static) num_threads(threads) if (n > 16384)
  for (int64_t i = 0; i < n; ++i) factor[i] = 1.0f / std::sqrt(v[i]);
}

}  // namespace

void run_cpu(const AdafactorFactors& a, Queue& queue) {
  const Factored& s = a.shape;
  float *vx = a.v_over_x.f32(), *vy = a.v_over_y.f32();
  const Clip::Numbers clip = a.clip.numbers();
  if (clip.apply) {
    const double root = double(clip.factor) / double(clip.divisor), scale = root * root;
    move_moment(vx, a.over_x.f64(), s.over_x(), scale / double(s.x), a.beta2, double(a.eps),
                queue.threads());
    move_moment(vy, a.over_y.f64(), s.over_y(), scale / double(s.y), a.beta2, double(a.eps),
                queue.threads());
  }
  if (s.x_is_largest) {  // R = the moment over x, with mean over y
    normalised_factor(vx, a.factor_over_x.f32(), s.outer * s.middle, s.y, s.inner);
    plain_factor(vy, a.factor_over_y.f32(), s.over_y(), queue.threads());
  } else {  // R = the moment over y, with mean over x
    normalised_factor(vy, a.factor_over_y.f32(), s.outer, s.x, s.middle * s.inner);
    plain_factor(vx, a.factor_over_x.f32(), s.over_x(), queue.threads());
  }
}

}  // namespace kernels
