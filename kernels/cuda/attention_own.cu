// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_own.hpp"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/launch.cuh"

namespace kernels {
namespace {

// The least number of blocks that an SM holds at a time. It limits the registers of a block.
template <int D>
constexpr int kBlocksOfSm = D <= 128 ? 2 : 1;

// The share of a block: the rows of queries or keys of one head, from row `first` on.
template <class T>
struct Work {
  int first, head, example;
  HeadRange range;
  __device__ Work(const AttentionTensors<T>& a, int rows)
      : first(int(blockIdx.x) * rows),
        head(int(blockIdx.y) % a.heads),
        example(int(blockIdx.y) / a.heads),
        range(head_range(a, example, head)) {}

  // The rows of q or dq. `outputs` are those of o or d_o, which have no gaps.
  template <class U>
  __device__ HeadRows<U> queries(const AttentionTensors<T>& a, U* tensor, int from) const {
    return rows_of(tensor, range.query_row, a.next_query, head, from, range.queries, a.dim,
                   a.packs);
  }
  template <class U>
  __device__ HeadRows<U> outputs(const AttentionTensors<T>& a, U* tensor, int from) const {
    return rows_of(tensor, range.query_row, int64_t(a.heads) * a.dim, head, from, range.queries,
                   a.dim, a.packs);
  }
  template <class U>
  __device__ HeadRows<U> keys(const AttentionTensors<T>& a, U* tensor, int from) const {
    return rows_of(tensor, range.key_row, a.next_key, head, from, range.keys, a.dim, a.packs);
  }
  // The number of keys from `key` on that query i sees, or 0 if there is no such query.
  __device__ int left(int i, int key) const {
    return i < range.queries ? range.visible(i) - key : 0;
  }
  // Queries before `to` see only keys before this one.
  __device__ int end_of_keys(int to) const {
    return range.visible(to < range.queries ? to - 1 : range.queries - 1);
  }
  __device__ int64_t lse_row(const AttentionTensors<T>& a) const {
    return (int64_t(example) * a.heads + head) * a.query_length;
  }
};

// Return the maximum and the sum over the 16 lanes that share a row.
__device__ inline float row_max(float x) {
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}
__device__ inline float row_sum(float x) {
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

// The softmax of a thread's rows, and their results, over the tiles of keys so far.
template <int D>
struct Softmax {
  using Tile = Tiling<D>;
  float largest[Tile::kRows], sum[Tile::kRows];  // sum: of this thread's columns
  float out[Tile::kRows][Tile::kSums];
  __device__ Softmax() {
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      largest[r] = -INFINITY;
      sum[r] = 0;
#pragma unroll
      for (int e = 0; e < Tile::kSums; ++e) out[r][e] = 0;
    }
  }
  // Adds a tile of scores, and writes the weights after dropout.
  template <class T>
  __device__ void add(const float (&scores)[Tile::kRows][Tile::kColumns], float* weights,
                      const TilePlace<D>& place, const AttentionTensors<T>& a, const Work<T>& work,
                      int key) {
    if (a.dropout != 0) draw_factors<false>(weights, place, a, work.range, work.first, key);
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      const int left = work.left(work.first + place.row(r), key);
      float top = -INFINITY;
#pragma unroll
      for (int c = 0; c < Tile::kColumns; ++c)
        if (place.column + 16 * c < left) top = fmaxf(top, scores[r][c]);
      const float now = fmaxf(largest[r], row_max(top)), base = now == -INFINITY ? 0.0f : now,
                  shrink = expf(largest[r] - base);
      largest[r] = now;
      sum[r] *= shrink;
#pragma unroll
      for (int c = 0; c < Tile::kColumns; ++c) {
        const int j = place.column + 16 * c;
        const float power = j < left ? expf(scores[r][c] - base) : 0.0f;
        float& weight = weights[place.row(r) * Tile::kScoreStride + j];
        sum[r] += power;
        weight = j < left && a.dropout != 0 ? power * weight : power;
      }
#pragma unroll
      for (int e = 0; e < Tile::kSums; ++e) out[r][e] *= shrink;
    }
  }
};

template <class T, int D>
__global__ void __launch_bounds__(kTileThreads, kBlocksOfSm<D>)
    attention_forward(AttentionTensors<T> a) {
  using Tile = Tiling<D>;
  const Work<T> work(a, Tile::kBlockRows);
  const HeadRange& range = work.range;
  if (work.first >= range.queries) return;
  float* q = dynamic_shared<float>();
  float *k = q + Tile::kRowTile, *v = k + Tile::kEither, *weights = k;
  const TilePlace<D> place;
  const bool works = work.first + place.warp_row < range.queries;
  load_tile<D, Tile::kBlockRows>(q, work.queries(a, a.q, work.first), a.scale);
  Softmax<D> softmax;
  const int end = work.end_of_keys(work.first + Tile::kBlockRows),
            warp_end = work.end_of_keys(work.first + place.warp_end());
  for (int key = 0; key < end; key += Tile::kBlockColumns) {
    __syncthreads();  // waits until no thread reads the previous tiles
    load_tile<D, Tile::kBlockColumns>(k, work.keys(a, a.k, key), 1.0f);
    load_tile<D, Tile::kBlockColumns>(v, work.keys(a, a.v, key), 1.0f);
    __syncthreads();
    const int columns = min(warp_end - key, Tile::kBlockColumns);
    float scores[Tile::kRows][Tile::kColumns];
    const bool sees = works && columns > 0;
    if (sees) multiply_rows(scores, place, q, k, columns);
    __syncthreads();  // waits until no thread reads k, whose place the weights take
    if (!sees) continue;
    softmax.add(scores, weights, place, a, work, key);
    __syncwarp();  // one warp writes and reads a row's weights
    add_products(softmax.out, place, weights, v, 0, columns);
  }
  if (!works) return;
  float factors[Tile::kRows];
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
    const float sum = row_sum(softmax.sum[r]);
    const int i = work.first + place.row(r);
    factors[r] = 1 / sum;
    if (a.lse && place.column == 0 && i < range.queries)
      a.lse[work.lse_row(a) + i] = softmax.largest[r] + logf(sum);
  }
  store_rows(work.outputs(a, a.out, work.first), place, softmax.out, factors);
}

// lse and delta = d_o . o of the queries of a tile, in shared memory.
template <class T, int D, int kQueries>
__device__ void load_query_sums(float* lse, float* delta, const AttentionTensors<T>& a,
                                const Work<T>& work, int first) {
  constexpr int kThreads = kTileThreads / kQueries, N = int(16 / sizeof(T));
  const int query = int(threadIdx.x) / kThreads, part = int(threadIdx.x) % kThreads;
  const HeadRows<const T> d_o = work.outputs(a, a.d_o, first), o = work.outputs(a, a.o, first);
  const bool exists = query < o.count;
  float sum = 0;
  if (exists)
    for (int d = part * N; d < a.dim; d += kThreads * N) {
      const T *x = d_o.data + query * d_o.next + d, *y = o.data + query * o.next + d;
      const int left = a.dim - d;
      const Floats<N> p = a.packs ? load<true, N>(x, left) : load<false, N>(x, left),
                      s = a.packs ? load<true, N>(y, left) : load<false, N>(y, left);
#pragma unroll
      for (int i = 0; i < N; ++i) sum = fmaf(p[i], s[i], sum);
    }
#pragma unroll
  for (int distance = kThreads / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  if (part != 0) return;
  delta[query] = sum;
  lse[query] = exists ? a.lse[work.lse_row(a) + first + query] : 0.0f;
}

template <class T, int D>
__global__ void __launch_bounds__(kTileThreads, kBlocksOfSm<D>)
    attention_query_gradient(AttentionTensors<T> a) {
  using Tile = Tiling<D>;
  const Work<T> work(a, Tile::kBlockRows);
  const HeadRange& range = work.range;
  if (work.first >= range.queries) return;
  float* q = dynamic_shared<float>();
  float *d_o = q + Tile::kRowTile, *k = d_o + Tile::kRowTile, *v = k + Tile::kColumnTile,
        *gradient = v, *lse = v + Tile::kEither, *delta = lse + Tile::kBlockRows;
  const TilePlace<D> place;
  const bool works = work.first + place.warp_row < range.queries;
  load_tile<D, Tile::kBlockRows>(q, work.queries(a, a.q, work.first), a.scale);
  load_tile<D, Tile::kBlockRows>(d_o, work.outputs(a, a.d_o, work.first), 1.0f);
  load_query_sums<T, D, Tile::kBlockRows>(lse, delta, a, work, work.first);
  float dq[Tile::kRows][Tile::kSums] = {};
  const int end = work.end_of_keys(work.first + Tile::kBlockRows),
            warp_end = work.end_of_keys(work.first + place.warp_end());
  for (int key = 0; key < end; key += Tile::kBlockColumns) {
    __syncthreads();
    load_tile<D, Tile::kBlockColumns>(k, work.keys(a, a.k, key), 1.0f);
    load_tile<D, Tile::kBlockColumns>(v, work.keys(a, a.v, key), 1.0f);
    __syncthreads();
    const int columns = min(warp_end - key, Tile::kBlockColumns);
    float scores[Tile::kRows][Tile::kColumns], d_weights[Tile::kRows][Tile::kColumns];
    const bool sees = works && columns > 0;
    if (sees) {
      multiply_rows(scores, place, q, k, columns);
      multiply_rows(d_weights, place, d_o, v, columns);
    }
    __syncthreads();  // waits until no thread reads v, whose place the gradients take
    if (!sees) continue;
    if (a.dropout != 0) draw_factors<false>(gradient, place, a, range, work.first, key);
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      const int row = place.row(r), left = work.left(work.first + row, key);
#pragma unroll
      for (int c = 0; c < Tile::kColumns; ++c) {
        const int j = place.column + 16 * c;
        float& to = gradient[row * Tile::kScoreStride + j];
        const float p = expf(scores[r][c] - lse[row]), keep = a.dropout != 0 ? to : 1.0f;
        to = j < left ? p * (keep * d_weights[r][c] - delta[row]) : 0.0f;
      }
    }
    __syncwarp();
    add_products(dq, place, gradient, k, 0, columns);
  }
  if (!works) return;
  float factors[Tile::kRows];
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) factors[r] = a.scale;
  store_rows(work.queries(a, a.dq, work.first), place, dq, factors);
}

// Rows of the tile are keys, columns are queries.
template <class T, int D>
__global__ void __launch_bounds__(kTileThreads, kBlocksOfSm<D>)
    attention_key_gradients(AttentionTensors<T> a) {
  using Tile = Tiling<D>;
  const Work<T> work(a, Tile::kBlockRows);
  const HeadRange& range = work.range;
  if (work.first >= range.keys) return;
  float* k = dynamic_shared<float>();
  float *v = k + Tile::kRowTile, *q = v + Tile::kRowTile, *d_o = q + Tile::kColumnTile,
        *dropped = d_o + Tile::kColumnTile, *gradient = dropped + Tile::kScoreTile,
        *lse = gradient + Tile::kScoreTile, *delta = lse + Tile::kBlockColumns;
  const TilePlace<D> place;
  const bool works = work.first + place.warp_row < range.keys;
  load_tile<D, Tile::kBlockRows>(k, work.keys(a, a.k, work.first), 1.0f);
  load_tile<D, Tile::kBlockRows>(v, work.keys(a, a.v, work.first), 1.0f);
  float dk[Tile::kRows][Tile::kSums] = {}, dv[Tile::kRows][Tile::kSums] = {};
  // Under a causal mask the queries before the tile see none of its keys.
  for (int query = range.causal ? work.first : 0; query < range.queries;
       query += Tile::kBlockColumns) {
    __syncthreads();
    load_tile<D, Tile::kBlockColumns>(q, work.queries(a, a.q, query), a.scale);
    load_tile<D, Tile::kBlockColumns>(d_o, work.outputs(a, a.d_o, query), 1.0f);
    load_query_sums<T, D, Tile::kBlockColumns>(lse, delta, a, work, query);
    __syncthreads();
    if (!works) continue;
    const int columns = min(range.queries - query, Tile::kBlockColumns);
    float scores[Tile::kRows][Tile::kColumns], d_weights[Tile::kRows][Tile::kColumns];
    multiply_rows(scores, place, k, q, columns);
    multiply_rows(d_weights, place, v, d_o, columns);
    if (a.dropout != 0) draw_factors<true>(dropped, place, a, range, query, work.first);
#pragma unroll
    for (int c = 0; c < Tile::kColumns; ++c) {
      const int column = place.column + 16 * c, i = query + column,
                seen = i < range.queries ? range.visible(i) - work.first : 0;
#pragma unroll
      for (int r = 0; r < Tile::kRows; ++r) {
        const int row = place.row(r), at = row * Tile::kScoreStride + column;
        const float p = row < seen ? expf(scores[r][c] - lse[column]) : 0.0f,
                    keep = a.dropout != 0 ? dropped[at] : 1.0f;
        dropped[at] = p * keep;
        gradient[at] = row < seen ? p * (keep * d_weights[r][c] - delta[column]) : 0.0f;
      }
    }
    __syncwarp();
    const int begin = range.causal && query == work.first ? place.warp_row : 0;
    add_products(dv, place, dropped, d_o, begin, columns);
    add_products(dk, place, gradient, q, begin, columns);
  }
  if (!works) return;
  float factors[Tile::kRows];
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) factors[r] = 1;
  store_rows(work.keys(a, a.dk, work.first), place, dk, factors);
  store_rows(work.keys(a, a.dv, work.first), place, dv, factors);
}

// Starts a kernel with a block for each `rows` of `length`, and `floats` of shared memory.
template <class T>
void launch_tiles(void (*kernel)(AttentionTensors<T>), const AttentionTensors<T>& t,
                  const AttentionShape& s, int64_t length, int rows, int floats, Op op,
                  Queue& queue) {
  // 65,535 is the limit of blockIdx.y.
  CHECK(s.batch * s.heads <= 65535,
        "{}: {} examples of {} heads are more than a launch takes; use a smaller micro_batch",
        name_of(op), s.batch, s.heads);
  launch(kernel, dim3(blocks_for(length, rows).x, unsigned(s.batch * s.heads)), dim3(kTileThreads),
         size_t(floats) * sizeof(float), queue, t);
}

template <class T>
bool has_packs(const AttentionTensors<T>& t, std::initializer_list<const void*> pointers) {
  const auto bytes = [](int64_t count) { return count * int64_t(sizeof(T)); };
  bool packs = (bytes(t.dim) | bytes(t.next_query) | bytes(t.next_key)) % 16 == 0;
  for (const void* p : pointers) packs = packs && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  return packs;
}

template <class T, int D>
void run_tiles(const AttentionForward& a, Queue& queue) {
  using Tile = Tiling<D>;
  AttentionTensors<T> t = tensors_of<T>(a.shape);
  t.q = static_cast<const T*>(a.q.data);
  t.k = static_cast<const T*>(a.k.data);
  t.v = static_cast<const T*>(a.v.data);
  t.out = static_cast<T*>(a.o.data);
  t.lse = static_cast<float*>(a.lse.data);
  t.packs = has_packs(t, {t.q, t.k, t.v, t.out});
  launch_tiles(attention_forward<T, D>, t, a.shape, a.shape.query_length, Tile::kBlockRows,
               Tile::kRowTile + Tile::kEither + Tile::kColumnTile, a.op, queue);
}

template <class T, int D>
void run_tiles(const AttentionBackward& a, Queue& queue) {
  using Tile = Tiling<D>;
  AttentionTensors<T> t = tensors_of<T>(a.shape);
  t.q = static_cast<const T*>(a.q.data);
  t.k = static_cast<const T*>(a.k.data);
  t.v = static_cast<const T*>(a.v.data);
  t.o = static_cast<const T*>(a.o.data);
  t.d_o = static_cast<const T*>(a.d_o.data);
  t.lse = static_cast<float*>(a.lse.data);
  t.dq = static_cast<T*>(a.dq.data);
  t.dk = static_cast<T*>(a.dk.data);
  t.dv = static_cast<T*>(a.dv.data);
  t.packs = has_packs(t, {t.q, t.k, t.v, t.o, t.d_o, t.dq, t.dk, t.dv});
  launch_tiles(attention_query_gradient<T, D>, t, a.shape, a.shape.query_length, Tile::kBlockRows,
               2 * (Tile::kRowTile + Tile::kBlockRows) + Tile::kColumnTile + Tile::kEither, a.op,
               queue);
  launch_tiles(attention_key_gradients<T, D>, t, a.shape, a.shape.key_length, Tile::kBlockRows,
               2 * (Tile::kRowTile + Tile::kColumnTile + Tile::kScoreTile + Tile::kBlockColumns),
               a.op, queue);
}

template <class Args>
void run_own(const Args& a, Queue& queue) {
  const int64_t dim = a.shape.head_dim;
  CHECK(dim <= 256,
        "{}: head_dim is {}; our own GPU kernels take at most 256; use more heads, or run "
        "on CPUs",
        name_of(a.op), dim);
  with_activation(a.q.type, [&](auto element) {
    using T = decltype(element);
    if (dim <= 32) return run_tiles<T, 32>(a, queue);
    if (dim <= 64) return run_tiles<T, 64>(a, queue);
    if (dim <= 128) return run_tiles<T, 128>(a, queue);
    run_tiles<T, 256>(a, queue);
  });
}

}  // namespace

void attention_by_tiles(const AttentionForward& a, Queue& queue) { run_own(a, queue); }
void attention_by_tiles(const AttentionBackward& a, Queue& queue) { run_own(a, queue); }

}  // namespace kernels
