// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of token embedding and its gradient. Forward is a gather. Backward sums
// segments of rows with one id (embedding_plan.hpp), without atomics and without the host. The host
// does not check ids, because it never waits for the GPU. An unknown id reads as NaN in forward,
// and backward skips its row.
#include "kernels/cuda/embedding_plan.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/embedding.hpp"

namespace kernels {
namespace {

struct EmbeddingBody {
  float* y;
  const int32_t* ids;
  const float *table, *positions;
  int64_t width, vocabulary, length;
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t column, int64_t left) const {
    const int32_t id = ids[row];
    Floats<N> v;
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = NAN;
    if (id >= 0 && id < vocabulary) v = load<kAligned, N>(table + id * width + column, left);
    const Floats<N> w = load<kAligned, N>(positions + row % length * width + column, left);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] += w[k];
    store<kAligned>(y + row * width + column, v, left);
  }
};

// The tables of EmbeddingPlan in memory, and its sizes. There are many members because each table
// has one, and all kernels of the plan take this one argument.
struct Segments {
  const int32_t* ids;
  int rows, vocabulary, tiles, width;
  int *counts, *segment_rows, *segment_begin, *piece_begin, *part_begin, *ranks, *order, *piece_ids,
      *piece_numbers;
  int *long_ids, *totals;
  float* sums;
};

// One block per tile counts ids. It also ranks each row among the rows of its id, by comparing all
// pairs of rows.
__global__ void __launch_bounds__(EmbeddingPlan::kTileRows) rank_rows(Segments s) {
  __shared__ int ids[EmbeddingPlan::kTileRows];
  const int t = int(threadIdx.x), row = int(blockIdx.x) * EmbeddingPlan::kTileRows + t;
  const int id = row < s.rows ? s.ids[row] : -1;
  ids[t] = id;
  __syncthreads();
  if (id < 0 || id >= s.vocabulary) return;
  int before = 0, after = 0;
#pragma unroll 8
  for (int i = 0; i < EmbeddingPlan::kTileRows; ++i) {
    const int same = ids[i] == id;
    before += i < t ? same : 0;
    after += i > t ? same : 0;
  }
  s.ranks[row] = before;
  if (after == 0) s.counts[int64_t(blockIdx.x) * s.vocabulary + id] = before + 1;
}

// Counts the rows of each id in the tiles before each tile, and in all tiles.
__global__ void __launch_bounds__(256) add_tiles(Segments s) {
  const int id = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (id >= s.vocabulary) return;
  int sum = 0;
  for (int tile = 0; tile < s.tiles; ++tile) {
    int& count = s.counts[int64_t(tile) * s.vocabulary + id];
    const int here = count;
    count = sum;
    sum += here;
  }
  s.segment_rows[id] = sum;
}

struct SegmentCounts {
  int rows = 0, pieces = 0, parts = 0, longs = 0;
  __device__ void add(const SegmentCounts& o) {
    rows += o.rows;
    pieces += o.pieces;
    parts += o.parts;
    longs += o.longs;
  }
  __device__ void add_segment(int segment_rows) {
    const int n = (segment_rows + EmbeddingPlan::kPieceRows - 1) / EmbeddingPlan::kPieceRows;
    add({segment_rows, n, n > 1 ? n : 0, n > 1});
  }
};

// A single block finds the begin of each segment. Each thread has consecutive ids.
constexpr int kScanThreads = 1024;
__global__ void __launch_bounds__(kScanThreads) place_segments(Segments s) {
  __shared__ SegmentCounts thread_counts[kScanThreads];
  const int t = int(threadIdx.x), each = (s.vocabulary + kScanThreads - 1) / kScanThreads;
  const int first = t * each, end = first + each < s.vocabulary ? first + each : s.vocabulary;
  SegmentCounts sum;
  for (int id = first; id < end; ++id) sum.add_segment(s.segment_rows[id]);
  thread_counts[t] = sum;
  __syncthreads();
  // Sums over all threads up to this one.
  for (int distance = 1; distance < kScanThreads; distance *= 2) {
    SegmentCounts before;
    if (t >= distance) before = thread_counts[t - distance];
    __syncthreads();
    thread_counts[t].add(before);
    __syncthreads();
  }
  SegmentCounts at;
  if (t > 0) at = thread_counts[t - 1];
  for (int id = first; id < end; ++id) {
    s.segment_begin[id] = at.rows;
    s.piece_begin[id] = at.pieces;
    s.part_begin[id] = at.parts;
    if (s.segment_rows[id] > EmbeddingPlan::kPieceRows) s.long_ids[at.longs] = id;
    at.add_segment(s.segment_rows[id]);
  }
  if (t == kScanThreads - 1) {
    s.totals[0] = thread_counts[t].pieces;
    s.totals[1] = thread_counts[t].longs;
  }
}

__global__ void __launch_bounds__(256) sort_rows(Segments s) {
  const int row = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= s.rows) return;
  const int id = s.ids[row];
  if (id < 0 || id >= s.vocabulary) return;
  const int within =
      s.counts[int64_t(row / EmbeddingPlan::kTileRows) * s.vocabulary + id] + s.ranks[row];
  s.order[s.segment_begin[id] + within] = row;
  if (within % EmbeddingPlan::kPieceRows != 0) return;
  const int number = within / EmbeddingPlan::kPieceRows, piece = s.piece_begin[id] + number;
  s.piece_ids[piece] = id;
  s.piece_numbers[piece] = number;
}

// Writes 0 to the gradient of an id without rows.
struct ZeroUnusedBody {
  Segments s;
  float* dtable;
  template <bool kAligned, int N>
  __device__ void run(int64_t id, int64_t column, int64_t left) const {
    if (s.segment_rows[id] == 0) store<kAligned>(dtable + id * s.width + column, Floats<N>{}, left);
  }
};

// Sums a piece. The sum is the gradient itself if the segment has one piece, else a part of it.
struct SumPiecesBody {
  Segments s;
  const float* dy;
  float* dtable;
  bool add;
  template <bool kAligned, int N>
  __device__ void run(int64_t piece, int64_t column, int64_t left) const {
    if (piece >= s.totals[0]) return;
    const int id = s.piece_ids[piece], number = s.piece_numbers[piece], all = s.segment_rows[id];
    const bool whole = all <= EmbeddingPlan::kPieceRows;
    const int rest = all - number * EmbeddingPlan::kPieceRows;
    const int count = rest < EmbeddingPlan::kPieceRows ? rest : EmbeddingPlan::kPieceRows;
    const int* rows = s.order + s.segment_begin[id] + number * EmbeddingPlan::kPieceRows;
    float* out = whole ? dtable + int64_t(id) * s.width
                       : s.sums + int64_t(s.part_begin[id] + number) * s.width;
    Floats<N> sum{};
    if (whole && add) sum = load<kAligned, N>(out + column, left);
#pragma unroll 8
    for (int r = 0; r < count; ++r) {
      const Floats<N> v = load<kAligned, N>(dy + int64_t(rows[r]) * s.width + column, left);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += v[k];
    }
    store<kAligned>(out + column, sum, left);
  }
};

// Adds the parts of each long segment in order.
struct SumLongBody {
  Segments s;
  float* dtable;
  bool add;
  template <bool kAligned, int N>
  __device__ void run(int64_t which, int64_t column, int64_t left) const {
    if (which >= s.totals[1]) return;
    const int id = s.long_ids[which];
    const int parts =
        (s.segment_rows[id] + EmbeddingPlan::kPieceRows - 1) / EmbeddingPlan::kPieceRows;
    const float* from = s.sums + int64_t(s.part_begin[id]) * s.width + column;
    float* out = dtable + int64_t(id) * s.width + column;
    Floats<N> sum{};
    if (add) sum = load<kAligned, N>(out, left);
#pragma unroll 8
    for (int p = 0; p < parts; ++p) {
      const Floats<N> v = load<kAligned, N>(from + int64_t(p) * s.width, left);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += v[k];
    }
    store<kAligned>(out, sum, left);
  }
};

}  // namespace

void run_cuda(const EmbeddingForward& a, Queue& queue) {
  EmbeddingBody body{a.y.f32(), a.ids.i32(),  a.table.f32(), a.positions.f32(),
                     a.width,   a.vocabulary, a.length};
  for_each_row<4>(body, a.rows, a.width, packs_fit(4, a.width, {a.y, a.table, a.positions}), queue);
}

void run_cuda(const EmbeddingBackward& a, Queue& queue) {
  const EmbeddingPlan plan(a.rows, a.vocabulary, a.width);
  int* tables = static_cast<int*>(queue.scratch(cuda_scratch(a)));
  const Segments s{.ids = a.ids.i32(),
                   .rows = int(plan.rows),
                   .vocabulary = int(plan.vocabulary),
                   .tiles = int(plan.tiles()),
                   .width = int(plan.width),
                   .counts = tables + plan.counts(),
                   .segment_rows = tables + plan.segment_rows(),
                   .segment_begin = tables + plan.segment_begin(),
                   .piece_begin = tables + plan.piece_begin(),
                   .part_begin = tables + plan.part_begin(),
                   .ranks = tables + plan.ranks(),
                   .order = tables + plan.order(),
                   .piece_ids = tables + plan.piece_ids(),
                   .piece_numbers = tables + plan.piece_numbers(),
                   .long_ids = tables + plan.long_ids(),
                   .totals = tables + plan.totals(),
                   .sums = reinterpret_cast<float*>(tables + plan.sums())};
  const bool add = a.write == Write::accumulate;
  float *dtable = a.dtable.f32(), *dy = a.dy.f32();
  device::check_cuda(
      cudaMemsetAsync(s.counts, 0, size_t(plan.tiles() * plan.vocabulary) * sizeof(int),
                      device::stream_of(queue)),
      "zeroing counts of ids");
  launch(rank_rows, blocks_for(plan.tiles(), 1), dim3(EmbeddingPlan::kTileRows), 0, queue, s);
  launch(add_tiles, blocks_for(plan.vocabulary, 256), dim3(256), 0, queue, s);
  launch(place_segments, dim3(1), dim3(kScanThreads), 0, queue, s);
  launch(sort_rows, blocks_for(plan.rows, 256), dim3(256), 0, queue, s);
  const bool aligned = packs_fit(4, a.width, {a.dtable, a.dy});
  if (!add) for_each_row<4>(ZeroUnusedBody{s, dtable}, plan.vocabulary, plan.width, aligned, queue);
  for_each_row<4>(SumPiecesBody{s, dy, dtable, add}, plan.most_pieces(), plan.width, aligned,
                  queue);
  for_each_row<4>(SumLongBody{s, dtable, add}, plan.most_long(), plan.width, aligned, queue);
}

}  // namespace kernels
