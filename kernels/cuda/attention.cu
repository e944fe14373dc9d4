// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of attention: by cuDNN, by products of cuBLASLt, or by our own kernels for
// all cases that neither serves.
#include "kernels/attention.hpp"
#include "kernels/cuda/attention_cublaslt.hpp"
#include "kernels/cuda/attention_cudnn.hpp"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/paths.hpp"

namespace kernels {
namespace {

// Rows of a tile of scores that one warp computes. Warp w has the rows from 4 w to 4 w + 3, and its
// lane j has key j.
constexpr int kRowsPerWarp = kTile / (kTileThreads / 32);

template <class T>
__global__ void __launch_bounds__(kTileThreads, 2) attention_forward(AttentionTensors<T> a) {
  const int first = int(blockIdx.x) * kTile, head = int(blockIdx.y) % a.heads,
            example = int(blockIdx.y) / a.heads;
  const HeadRange r = head_range(a, example, head);
  if (first >= r.queries) return;
  TileStore store{dynamic_shared<float>(), a.dim + 1};
  const int stride = store.stride;
  float *q = store.rows(), *k = store.rows(), *v = store.rows(), *out = store.rows(),
        *weights = store.scores();
  load_tile(q, stride, a.q, r.query_row, head, a, first, r.queries, a.scale);
  for (int e = int(threadIdx.x); e < kTile * stride; e += kTileThreads) out[e] = 0;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  float largest[kRowsPerWarp], sum[kRowsPerWarp];
#pragma unroll
  for (int n = 0; n < kRowsPerWarp; ++n) {
    largest[n] = -INFINITY;
    sum[n] = 0;
  }

  const int end = r.visible(first + kTile - 1 < r.queries ? first + kTile - 1 : r.queries - 1);
  for (int key = 0; key < end; key += kTile) {
    __syncthreads();  // waits until no thread reads the previous tiles
    load_tile(k, stride, a.k, r.key_row, head, a, key, r.keys, 1.0f);
    load_tile(v, stride, a.v, r.key_row, head, a, key, r.keys, 1.0f);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kRowsPerWarp; ++n) {
      // left: keys that query i sees from this tile on
      const int row = warp * kRowsPerWarp + n, i = first + row, left = r.visible(i) - key;
      const bool seen = lane < left && i < r.queries;
      const float score = seen ? dot(q + row * stride, k + lane * stride, a.dim) : -INFINITY;
      const float now = fmaxf(largest[n], warp_max(score)), base = now == -INFINITY ? 0.0f : now;
      const float shrink = expf(largest[n] - base), power = seen ? expf(score - base) : 0.0f;
      sum[n] = sum[n] * shrink + warp_sum(power);
      largest[n] = now;
      weights[row * kScoreStride + lane] = seen ? power * kept(a, r, i, key + lane) : 0.0f;
      __syncwarp();
      const int count = left < kTile ? left : kTile;
      for (int d = lane; d < a.dim; d += 32) {
        float x = out[row * stride + d] * shrink;
        for (int j = 0; j < count; ++j)
          x = fmaf(weights[row * kScoreStride + j], v[j * stride + d], x);
        out[row * stride + d] = x;
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kRowsPerWarp; ++n) {
    const int row = warp * kRowsPerWarp + n, i = first + row;
    for (int d = lane; d < a.dim; d += 32) out[row * stride + d] /= sum[n];
    if (a.lse && lane == 0 && i < r.queries)
      a.lse[(int64_t(example) * a.heads + head) * a.query_length + i] = largest[n] + logf(sum[n]);
  }
  __syncthreads();
  store_tile(a.out, out, stride, r.query_row, head, a, first, r.queries, 1.0f);
}

// Tiles of queries (q, already scaled, and d_o) and of keys (k, v) in shared memory, and the
// results of score_gradients for them.
struct ScoreTiles {
  float *q, *k, *v, *d_o;
  float* dropped;            // may be null: the weights exp(scores - lse) after dropout
  float* gradient;           // of the scores
  const float *lse, *delta;  // [32], of the queries
};

template <class T>
__device__ void score_gradients(const ScoreTiles& s, int stride, const AttentionTensors<T>& a,
                                const HeadRange& r, int query, int key) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
#pragma unroll 1
  for (int n = 0; n < kRowsPerWarp; ++n) {
    const int row = warp * kRowsPerWarp + n, i = query + row, j = key + lane;
    float weight = 0, gradient = 0;
    if (i < r.queries && j < r.visible(i)) {
      const float p = expf(dot(s.q + row * stride, s.k + lane * stride, a.dim) - s.lse[row]),
                  keep = kept(a, r, i, j);
      weight = p * keep;
      gradient = p * (keep * dot(s.d_o + row * stride, s.v + lane * stride, a.dim) - s.delta[row]);
    }
    if (s.dropped) s.dropped[row * kScoreStride + lane] = weight;
    s.gradient[row * kScoreStride + lane] = gradient;
  }
}

// Computes delta[i] = d_o . o for the queries of a tile, and loads their lse. Shared memory has
// d_o.
template <class T>
__device__ void query_sums(float* lse, float* delta, const float* d_o, int stride,
                           const AttentionTensors<T>& a, const HeadRange& r, int example, int head,
                           int first) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
#pragma unroll 1
  for (int n = 0; n < kRowsPerWarp; ++n) {
    const int row = warp * kRowsPerWarp + n, i = first + row;
    float sum = 0;
    if (i < r.queries) {
      const T* o = a.o + ((r.query_row + i) * a.heads + head) * a.dim;
      for (int d = lane; d < a.dim; d += 32) sum = fmaf(d_o[row * stride + d], widen(o[d]), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      delta[row] = sum;
      lse[row] =
          i < r.queries ? a.lse[(int64_t(example) * a.heads + head) * a.query_length + i] : 0.0f;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, 2) attention_query_gradient(AttentionTensors<T> a) {
  const int first = int(blockIdx.x) * kTile, head = int(blockIdx.y) % a.heads,
            example = int(blockIdx.y) / a.heads;
  const HeadRange r = head_range(a, example, head);
  if (first >= r.queries) return;
  TileStore store{dynamic_shared<float>(), a.dim + 1};
  const int stride = store.stride;
  float *q = store.rows(), *k = store.rows(), *v = store.rows(), *d_o = store.rows(),
        *dq = store.rows();
  float *gradient = store.scores(), *lse = store.take(kTile), *delta = store.take(kTile);
  load_tile(q, stride, a.q, r.query_row, head, a, first, r.queries, a.scale);
  load_tile(d_o, stride, a.d_o, r.query_row, head, a, first, r.queries, 1.0f);
  for (int e = int(threadIdx.x); e < kTile * stride; e += kTileThreads) dq[e] = 0;
  __syncthreads();
  query_sums(lse, delta, d_o, stride, a, r, example, head, first);
  const int end = r.visible(first + kTile - 1 < r.queries ? first + kTile - 1 : r.queries - 1);
  for (int key = 0; key < end; key += kTile) {
    __syncthreads();
    load_tile(k, stride, a.k, r.key_row, head, a, key, r.keys, 1.0f);
    load_tile(v, stride, a.v, r.key_row, head, a, key, r.keys, 1.0f);
    __syncthreads();
    score_gradients(ScoreTiles{q, k, v, d_o, nullptr, gradient, lse, delta}, stride, a, r, first,
                    key);
    __syncthreads();
    for (int e = int(threadIdx.x); e < kTile * a.dim; e += kTileThreads) {
      const int row = e / a.dim, d = e % a.dim, left = r.visible(first + row) - key,
                count = left < kTile ? left : kTile;
      float x = dq[row * stride + d];
      for (int j = 0; j < count; ++j)
        x = fmaf(gradient[row * kScoreStride + j], k[j * stride + d], x);
      dq[row * stride + d] = x;
    }
  }
  // Each thread stores what it has added itself.
  store_tile(a.dq, dq, stride, r.query_row, head, a, first, r.queries, a.scale);
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, 2) attention_key_gradients(AttentionTensors<T> a) {
  const int first = int(blockIdx.x) * kTile, head = int(blockIdx.y) % a.heads,
            example = int(blockIdx.y) / a.heads;
  const HeadRange r = head_range(a, example, head);
  if (first >= r.keys) return;
  TileStore store{dynamic_shared<float>(), a.dim + 1};
  const int stride = store.stride;
  float *q = store.rows(), *k = store.rows(), *v = store.rows(), *d_o = store.rows(),
        *dk = store.rows(), *dv = store.rows();
  float *gradient = store.scores(), *dropped = store.scores(), *lse = store.take(kTile),
        *delta = store.take(kTile);
  load_tile(k, stride, a.k, r.key_row, head, a, first, r.keys, 1.0f);
  load_tile(v, stride, a.v, r.key_row, head, a, first, r.keys, 1.0f);
  for (int e = int(threadIdx.x); e < kTile * stride; e += kTileThreads) {
    dk[e] = 0;
    dv[e] = 0;
  }
  // Under a causal mask the queries before the tile see none of its keys.
  for (int query = r.causal ? first : 0; query < r.queries; query += kTile) {
    __syncthreads();
    load_tile(q, stride, a.q, r.query_row, head, a, query, r.queries, a.scale);
    load_tile(d_o, stride, a.d_o, r.query_row, head, a, query, r.queries, 1.0f);
    __syncthreads();
    query_sums(lse, delta, d_o, stride, a, r, example, head, query);
    __syncthreads();
    score_gradients(ScoreTiles{q, k, v, d_o, dropped, gradient, lse, delta}, stride, a, r, query,
                    first);
    __syncthreads();
    const int left = r.queries - query, count = left < kTile ? left : kTile;
    for (int e = int(threadIdx.x); e < kTile * a.dim; e += kTileThreads) {
      const int row = e / a.dim, d = e % a.dim;
      float x = dk[row * stride + d], y = dv[row * stride + d];
      // The loop skips queries that do not see the key, because their rows may hold any values.
      for (int i = r.causal && query == first ? row : 0; i < count; ++i) {
        x = fmaf(gradient[i * kScoreStride + row], q[i * stride + d], x);
        y = fmaf(dropped[i * kScoreStride + row], d_o[i * stride + d], y);
      }
      dk[row * stride + d] = x;
      dv[row * stride + d] = y;
    }
  }
  __syncthreads();
  store_tile(a.dk, dk, stride, r.key_row, head, a, first, r.keys, 1.0f);
  store_tile(a.dv, dv, stride, r.key_row, head, a, first, r.keys, 1.0f);
}

template <class T>
void launch_tiles(void (*kernel)(AttentionTensors<T>), const AttentionTensors<T>& t,
                  const AttentionShape& s, int64_t rows, size_t shared, Op op, Queue& queue) {
  constexpr size_t kMostShared = 160 * 1024;  // an A100 has 163 KiB
  CHECK(shared <= kMostShared,
        "{}: head_dim {} needs {} KiB of a GPU's shared memory, which has 160", name_of(op),
        s.head_dim, shared / 1024);
  // 65,535 is the limit of blockIdx.y.
  CHECK(s.batch * s.heads <= 65535,
        "{}: {} examples of {} heads are more than a launch takes; use a smaller micro_batch",
        name_of(op), s.batch, s.heads);
  launch(kernel, dim3(blocks_for(rows, kTile).x, unsigned(s.batch * s.heads)), dim3(kTileThreads),
         shared, queue, t);
}

template <class T>
void forward(const AttentionForward& a, Queue& queue) {
  AttentionTensors<T> t = tensors_of<T>(a.shape);
  t.q = static_cast<const T*>(a.q.data);
  t.k = static_cast<const T*>(a.k.data);
  t.v = static_cast<const T*>(a.v.data);
  t.out = static_cast<T*>(a.o.data);
  t.lse = static_cast<float*>(a.lse.data);
  launch_tiles(attention_forward<T>, t, a.shape, a.shape.query_length, tile_bytes(4, 1, 0, t.dim),
               a.op, queue);
}

template <class T>
void backward(const AttentionBackward& a, Queue& queue) {
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
  launch_tiles(attention_query_gradient<T>, t, a.shape, a.shape.query_length,
               tile_bytes(5, 1, 2 * kTile, t.dim), a.op, queue);
  launch_tiles(attention_key_gradients<T>, t, a.shape, a.shape.key_length,
               tile_bytes(6, 2, 2 * kTile, t.dim), a.op, queue);
}

// Each way returns false if it does not serve the op. The next one then overwrites all results.
template <class Args, class Own>
void run_attention(const Args& a, Queue& queue, const Own& own) {
  if (a.shape.batch == 0) return;
  if (attention_by_cudnn(a, queue)) return count_path(Path::attention_cudnn, queue);
  if (attention_by_products(a, queue)) return count_path(Path::attention_products, queue);
  count_path(Path::attention_own, queue);
  with_activation(a.q.type, own);
}

}  // namespace

void run_cuda(const AttentionForward& a, Queue& queue) {
  run_attention(a, queue, [&](auto element) { forward<decltype(element)>(a, queue); });
}

void run_cuda(const AttentionBackward& a, Queue& queue) {
  run_attention(a, queue, [&](auto element) { backward<decltype(element)>(a, queue); });
}

}  // namespace kernels
