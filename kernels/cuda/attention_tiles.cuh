// SPDX-License-Identifier: Apache-2.0
// Operands and tiles of our own attention kernels (attention_own.cu). These serve every mask,
// packed rows, dropout, and any head_dim up to 256, with f32 arithmetic. A block has up to 64
// queries of one head (for the gradients of k and v, 64 keys), and loops over tiles of the other
// side. Scores stay in registers and shared memory. The order of sums depends on the shape of one
// example alone.
#pragma once

#include <cmath>

#include "kernels/attention.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/philox.cuh"

namespace kernels {

// Operands of all kernels; those that a kernel does not use are null. T is the type of activations.
// There are many members because a launch passes every operand and size of attention in one struct.
template <class T>
struct AttentionTensors {
  const T *q, *k, *v, *o, *d_o;
  T *out, *dq, *dk, *dv;
  float* lse;
  const uint8_t* flags;
  const int32_t *query_offsets, *key_offsets;
  int heads, query_length, key_length, dim;
  Mask mask;
  float scale;          // of q
  float dropout, kept;  // rate, and the factor of a kept weight
  base::Stream stream;
  int64_t first_example;
  int64_t next_query, next_key;  // from a row of q or dq (k, v, dk or dv) to the next
  bool packs;                    // rows of heads start at multiples of 16 bytes
};

// Returns the sizes and masks of a call, without operands.
template <class T>
AttentionTensors<T> tensors_of(const AttentionShape& s) {
  AttentionTensors<T> t{};
  t.flags = static_cast<const uint8_t*>(s.flags.data);
  t.query_offsets = static_cast<const int32_t*>(s.query_offsets.data);
  t.key_offsets = static_cast<const int32_t*>(s.key_offsets.data);
  t.heads = int(s.heads);
  t.query_length = int(s.query_length);
  t.key_length = int(s.key_length);
  t.dim = int(s.head_dim);
  t.mask = s.mask;
  t.scale = 1 / std::sqrt(float(s.head_dim));
  t.dropout = s.dropout;
  t.kept = 1 / (1 - s.dropout);
  t.stream = s.stream;
  t.first_example = s.first_example;
  t.next_query = s.next_query();
  t.next_key = s.next_key();
  return t;
}

// One head of one example.
struct HeadRange {
  int queries, keys;
  int64_t query_row, key_row;  // first rows in memory
  bool causal;
  uint64_t first_draw;

  // Query i sees the keys before this one.
  __device__ int visible(int i) const { return causal && i + 1 < keys ? i + 1 : keys; }
};

template <class T>
__device__ HeadRange head_range(const AttentionTensors<T>& a, int example, int head) {
  HeadRange r;
  r.query_row = a.query_offsets ? a.query_offsets[example] : int64_t(example) * a.query_length;
  r.queries = a.query_offsets ? int(a.query_offsets[example + 1] - r.query_row) : a.query_length;
  r.key_row = a.key_offsets ? a.key_offsets[example] : int64_t(example) * a.key_length;
  r.keys = a.key_offsets ? int(a.key_offsets[example + 1] - r.key_row) : a.key_length;
  r.causal = a.mask == Mask::causal || (a.mask == Mask::per_example && a.flags[example] != 0);
  r.first_draw = uint64_t((a.first_example + example) * a.heads + head) *
                 uint64_t(int64_t(a.query_length) * a.key_length);
  return r;
}

// Threads of a block. Thread t has column t % 16 of its tile of scores, and every 16th one after
// it.
constexpr int kTileThreads = 128;

// The tile of scores that a block computes at a time, and the part of it that a thread has. D is
// head_dim rounded up to a size that has kernels; tiles hold zeros for the rest.
//
// Threads have several rows and columns, because each number that they load then serves several
// products. Rows in shared memory are 4 floats longer than D. Eight neighbours that load 16 bytes
// each, in the same column of their rows, then use all banks once.
template <int D>
struct Tiling {
  static constexpr int kRows = D <= 64 ? 8 : 4, kColumns = D <= 64 ? 4 : 2;  // of a thread
  static constexpr int kBlockRows = 8 * kRows, kBlockColumns = 16 * kColumns;
  static constexpr int kStride = D + 4, kScoreStride = kBlockColumns + 4;
  static constexpr int kSums = D / 16;  // elements of a row of results that a thread has
  static constexpr int kPack = kSums < 4 ? kSums : 4, kPacks = kSums / kPack;
  // Floats of tiles in shared memory; kEither holds columns or scores.
  static constexpr int kRowTile = kBlockRows * kStride, kColumnTile = kBlockColumns * kStride,
                       kScoreTile = kBlockRows * kScoreStride,
                       kEither = kScoreTile > kColumnTile ? kScoreTile : kColumnTile;
};

// The place of a thread in the tile. The rows of a warp are neighbours. The rows of its two
// halves alternate, so that both halves load from different banks.
template <int D>
struct TilePlace {
  using Tile = Tiling<D>;
  int first_row, column, warp_row;
  __device__ TilePlace() {
    const int warp = int(threadIdx.x) / 32, half = int(threadIdx.x) / 16 % 2;
    column = int(threadIdx.x) % 16;
    warp_row = warp * 2 * Tile::kRows;
    first_row = warp_row + half;
  }
  __device__ int row(int r) const { return first_row + 2 * r; }
  __device__ int warp_end() const { return warp_row + 2 * Tile::kRows; }
  // Element u of pack p of a row of results.
  __device__ int element(int p, int u) const { return (p * 16 + column) * Tile::kPack + u; }
};

// The rows of one head from `first` on: row r is at data + r * next. Packs of 16 bytes may be
// loaded if `packs`.
template <class T>
struct HeadRows {
  T* data;
  int64_t next;
  int count, dim;
  bool packs;
};
template <class T>
__device__ HeadRows<T> rows_of(T* tensor, int64_t row, int64_t next, int head, int first, int rows,
                               int dim, bool packs) {
  return {tensor + (row + first) * next + int64_t(head) * dim, next, rows - first, dim, packs};
}

// tile[r][d] = factor * element d of row r, or 0 for rows and elements that do not exist.
template <int D, int kTileRows, class T>
__device__ void load_tile(float* tile, const HeadRows<const T>& from, float factor) {
  constexpr int N = int(16 / sizeof(T)), kInRow = D / N;
#pragma unroll 4
  for (int e = int(threadIdx.x); e < kTileRows * kInRow; e += kTileThreads) {
    const int r = e / kInRow, d = e % kInRow * N, left = r < from.count ? from.dim - d : 0;
    Floats<N> x{};
    if (left > 0) {
      const T* at = from.data + r * from.next + d;
      x = from.packs ? load<true, N>(at, left) : load<false, N>(at, left);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] *= factor;
#pragma unroll
    for (int i = 0; i < N; i += 4)
      store_pack(tile + r * Tiling<D>::kStride + d + i,
                 Pack<float, 4>{{x[i], x[i + 1], x[i + 2], x[i + 3]}});
  }
}

// Stores a thread's results, each row times its factor.
template <int D, class T>
__device__ void store_rows(const HeadRows<T>& to, const TilePlace<D>& place,
                           const float (&sums)[Tiling<D>::kRows][Tiling<D>::kSums],
                           const float (&factors)[Tiling<D>::kRows]) {
  using Tile = Tiling<D>;
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
    if (place.row(r) >= to.count) continue;
    T* row = to.data + place.row(r) * to.next;
#pragma unroll
    for (int p = 0; p < Tile::kPacks; ++p) {
      const int d = place.element(p, 0), left = to.dim - d;
      Floats<Tile::kPack> x;
#pragma unroll
      for (int u = 0; u < Tile::kPack; ++u) x[u] = factors[r] * sums[r][p * Tile::kPack + u];
      if (to.packs && left > 0)
        store<true>(row + d, x, left);
      else
        store<false>(row + d, x, left);
    }
  }
}

// scores[...] = the dropout factor of each weight of the calling warp's rows: 0, or 1 / (1 -
// dropout). Four neighbours along the keys share one or two blocks of random numbers. The tile
// starts at a query and a key; its rows are queries, or keys if kKeysAreRows.
template <bool kKeysAreRows, int D, class T>
__device__ void draw_factors(float* scores, const TilePlace<D>& place, const AttentionTensors<T>& a,
                             const HeadRange& range, int query, int key) {
  using Tile = Tiling<D>;
  constexpr int kColumns = Tile::kBlockColumns, kFours = 2 * Tile::kRows * kColumns / 4;
#pragma unroll 1
  for (int e = int(threadIdx.x) % 32; e < kFours; e += 32) {
    const int row = place.warp_row + (kKeysAreRows ? e / kColumns * 4 : e / (kColumns / 4)),
              column = kKeysAreRows ? e % kColumns : e % (kColumns / 4) * 4,
              i = query + (kKeysAreRows ? column : row), j = key + (kKeysAreRows ? row : column);
    const uint64_t draw = range.first_draw + uint64_t(int64_t(i) * a.key_length + j);
    const unsigned first = unsigned(draw % 4);
    const base::Philox4 block = a.stream.block(draw / 4);
    base::Philox4 next = block;
    if (first != 0) next = a.stream.block(draw / 4 + 1);
#pragma unroll
    for (unsigned n = 0; n < 4; ++n) {
      const unsigned w = first + n;
      const float uniform = uniform_of(w < 4 ? word_of(block, w) : word_of(next, w - 4));
      const int at = kKeysAreRows ? (row + int(n)) * Tile::kScoreStride + column
                                  : row * Tile::kScoreStride + column + int(n);
      scores[at] = uniform >= a.dropout ? a.kept : 0.0f;
    }
  }
  __syncwarp();
}

// scores[r][c] = the scalar product of row r of x and column c of y, for the first U columns of
// each thread and 0 for the others. The sum runs in the order of the elements.
template <int D, int U>
__device__ void multiply_rows(float (&scores)[Tiling<D>::kRows][Tiling<D>::kColumns],
                              const TilePlace<D>& place, const float* x, const float* y) {
  using Tile = Tiling<D>;
  constexpr int kStride = Tile::kStride;
  x += place.first_row * kStride;
  y += place.column * kStride;
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
    for (int c = 0; c < Tile::kColumns; ++c) scores[r][c] = 0;
#pragma unroll 2
  for (int d = 0; d < D; d += 4) {
    Pack<float, 4> b[U];
#pragma unroll
    for (int c = 0; c < U; ++c) b[c] = load_pack<4>(y + 16 * c * kStride + d);
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      const Pack<float, 4> a = load_pack<4>(x + 2 * r * kStride + d);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int c = 0; c < U; ++c) scores[r][c] = fmaf(a.at[i], b[c].at[i], scores[r][c]);
    }
  }
}

// The same, without the columns from `columns` on.
template <int D>
__device__ void multiply_rows(float (&scores)[Tiling<D>::kRows][Tiling<D>::kColumns],
                              const TilePlace<D>& place, const float* x, const float* y,
                              int columns) {
  constexpr int kAll = Tiling<D>::kColumns;
  if (columns <= 16)
    multiply_rows<D, 1>(scores, place, x, y);
  else if (kAll > 2 && columns <= 32)
    multiply_rows<D, 2>(scores, place, x, y);
  else
    multiply_rows<D, kAll>(scores, place, x, y);
}

// sums[r][...] += the sum over j in [begin, end) of weights[row r][j] * y[j][...], in the order of
// j. `begin` is rounded down and `end` up to multiples of 4; the weights there must be 0.
template <int D>
__device__ void add_products(float (&sums)[Tiling<D>::kRows][Tiling<D>::kSums],
                             const TilePlace<D>& place, const float* weights, const float* y,
                             int begin, int end) {
  using Tile = Tiling<D>;
  constexpr int kPack = Tile::kPack;
  weights += place.first_row * Tile::kScoreStride;
#pragma unroll 1
  for (int j = begin & ~3; j < end; j += 4) {
#pragma unroll
    for (int p = 0; p < Tile::kPacks; ++p) {
      Pack<float, kPack> b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        b[i] = load_pack<kPack>(y + (j + i) * Tile::kStride + place.element(p, 0));
#pragma unroll
      for (int r = 0; r < Tile::kRows; ++r) {
        const Pack<float, 4> a = load_pack<4>(weights + 2 * r * Tile::kScoreStride + j);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int u = 0; u < kPack; ++u)
            sums[r][p * kPack + u] = fmaf(a.at[i], b[i].at[u], sums[r][p * kPack + u]);
      }
    }
  }
}

}  // namespace kernels
