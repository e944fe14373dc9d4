// SPDX-License-Identifier: Apache-2.0
// Tiles in shared memory for our own attention kernels (attention.cu). These serve every mask,
// packed rows, dropout, and any head_dim that fits shared memory, with f32 arithmetic. A block has
// 32 queries of one head (for the gradients of k and v, 32 keys), and loops over tiles of the other
// side. Scores never leave shared memory. The order of sums depends on the shape alone.
#pragma once

#include <cmath>

#include "kernels/attention.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/philox.cuh"

namespace kernels {

// Rows of a tile. The lanes of a warp are the keys of one row of scores.
constexpr int kTile = 32;
constexpr int kTileThreads = 256;
constexpr int kScoreStride = kTile + 1;

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

// Returns the dropout factor of the weight of query i for key j: 0, or 1 / (1 - dropout).
template <class T>
__device__ float kept(const AttentionTensors<T>& a, const HeadRange& r, int i, int j) {
  if (a.dropout == 0) return 1;
  uint64_t draw = r.first_draw + uint64_t(int64_t(i) * a.key_length + j);
  return uniform_draw(a.stream, draw) >= a.dropout ? a.kept : 0;
}

// Allots shared memory for tiles of [32][dim]. Rows are one float longer, so that the elements of a
// column lie in different banks.
struct TileStore {
  float* next;
  int stride;
  __device__ float* rows() { return take(kTile * stride); }
  __device__ float* scores() { return take(kTile * kScoreStride); }
  __device__ float* take(int floats) {
    float* p = next;
    next += floats;
    return p;
  }
};
inline size_t tile_bytes(int row_tiles, int score_tiles, int extra_floats, int dim) {
  return sizeof(float) *
         size_t(row_tiles * kTile * (dim + 1) + score_tiles * kTile * kScoreStride + extra_floats);
}

// tile[r][d] = factor * element d of row first + r of a head, or 0 for rows from `rows` on.
template <class T>
__device__ void load_tile(float* tile, int stride, const T* from, int64_t row, int head,
                          const AttentionTensors<T>& a, int first, int rows, float factor) {
  const int64_t width = int64_t(a.heads) * a.dim;
  const T* head_rows = from + (row + first) * width + int64_t(head) * a.dim;
  for (int e = int(threadIdx.x); e < kTile * a.dim; e += kTileThreads) {
    const int r = e / a.dim, d = e % a.dim;
    tile[r * stride + d] = first + r < rows ? factor * widen(head_rows[r * width + d]) : 0.0f;
  }
}
template <class T>
__device__ void store_tile(T* to, const float* tile, int stride, int64_t row, int head,
                           const AttentionTensors<T>& a, int first, int rows, float factor) {
  const int64_t width = int64_t(a.heads) * a.dim;
  T* head_rows = to + (row + first) * width + int64_t(head) * a.dim;
  for (int e = int(threadIdx.x); e < kTile * a.dim; e += kTileThreads) {
    const int r = e / a.dim, d = e % a.dim;
    if (first + r < rows) narrow(factor * tile[r * stride + d], head_rows[r * width + d]);
  }
}

// Returns the scalar product of two rows of tiles.
__device__ inline float dot(const float* x, const float* y, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum = fmaf(x[d], y[d], sum);
  return sum;
}

}  // namespace kernels
