// Forward and backward of one (batch, head), block of queries by block of queries; see vector_math.hpp for how it is
// compiled. Scores never leave a block: [block, key_length] floats of a thread's scratch.
#pragma once

#include "kernels/attention_tile.hpp"
#include "kernels/vector_rows.hpp"

namespace kernels {
namespace {

constexpr int64_t kQueryBlock = 48;  // at most; multiple of kTileRows

KERNELS_INLINE int64_t tile_up(int64_t rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

// Sizes that forward and backward share; they depend on the shape alone.
struct HeadSizes {
  int64_t block;    // queries per block, all blocks about equal
  int64_t scores;   // row length of a block of scores: keys, padded so that whole tiles can be read and written
  int64_t keys;     // key_length in whole vectors
  int64_t width;    // head_dim in whole vectors
  HeadSizes(int64_t query_length, int64_t key_length, int64_t head_dim)
      : block(0), scores(lanes_up(key_length + kTileRows)), keys(lanes_up(key_length)), width(lanes_up(head_dim)) {
    int64_t blocks = (query_length + kQueryBlock - 1) / kQueryBlock;
    if (blocks > 0) block = tile_up((query_length + blocks - 1) / blocks);  // no query: no block is looked at
  }
};

// Hands out pieces of a thread's scratch, 64-byte aligned.
struct Scratch {
  float* next;
  int64_t used = 0;
  float* take(int64_t count) {
    int64_t whole = (count + 15) / 16 * 16;
    float* p = next ? next + used : nullptr;
    used += whole;
    return p;
  }
};

struct ForwardScratch {
  float *keys_t, *values, *queries, *scores, *out, *factors;
  int64_t floats;
  ForwardScratch(float* base, const HeadSizes& s, int64_t key_length, int64_t head_dim) {
    Scratch scratch{base};
    keys_t = scratch.take(packed_size(head_dim, key_length));
    values = scratch.take(packed_size(key_length, head_dim));
    queries = scratch.take(s.block * head_dim);
    scores = scratch.take(s.block * s.scores);
    out = scratch.take(s.block * s.width);
    factors = scratch.take(key_length + 4 * kLanes);
    floats = scratch.used;
  }
};

struct BackwardScratch {
  float *keys_t, *values_t, *keys, *queries, *d_out, *queries_b, *d_out_b, *weights, *d_scores, *dq, *dk, *dv, *factors;
  int64_t floats;
  BackwardScratch(float* base, const HeadSizes& s, int64_t key_length, int64_t head_dim) {
    Scratch scratch{base};
    keys_t = scratch.take(packed_size(head_dim, key_length));
    values_t = scratch.take(packed_size(head_dim, key_length));
    keys = scratch.take(packed_size(key_length, head_dim));
    queries = scratch.take(s.block * head_dim);
    d_out = scratch.take(s.block * head_dim);
    queries_b = scratch.take(packed_size(s.block, head_dim));
    d_out_b = scratch.take(packed_size(s.block, head_dim));
    weights = scratch.take(s.block * s.scores);
    d_scores = scratch.take(s.block * s.scores);
    dq = scratch.take(s.block * s.width);
    dk = scratch.take(tile_up(key_length) * s.width);
    dv = scratch.take(tile_up(key_length) * s.width);
    factors = scratch.take(key_length + 4 * kLanes);
    floats = scratch.used;
  }
};

// out = in * factor, n of the elements of each row.
template <class To, class From>
KERNELS_INLINE void copy_rows(To* out, int64_t out_stride, const From* in, int64_t in_stride, int64_t rows, int64_t n,
                              float factor) {
  V f = broadcast(factor);
  for (int64_t r = 0; r < rows; ++r, out += out_stride, in += in_stride) {
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes) store(out + j, load(in + j) * f);
    if (j < n) store_part(out + j, load_part(in + j, n - j) * f, n - j);
  }
}

KERNELS_INLINE void zero(float* p, int64_t count) { __builtin_memset(p, 0, size_t(count) * sizeof(float)); }

// A block of queries (or their gradients) as left operand: packed rows, those past the last one up to a whole tile
// zero.
template <class T>
KERNELS_INLINE void copy_block(float* out, const T* in, int64_t stride, int64_t rows, int64_t n, float factor) {
  copy_rows(out, n, in, stride, rows, n, factor);
  zero(out + rows * n, (tile_up(rows) - rows) * n);
}

// Scores of a block: rows . packed keys, for whole tiles of rows. Causal: tiles past the diagonal are not computed.
template <class T>
KERNELS_INLINE void score_block(float* scores, const HeadSizes& s, const float* rows, const float* packed,
                                const AttentionHead<T>& h, int64_t first, int64_t count) {
  for (int64_t r = 0; r < count; r += kTileRows) {
    int64_t used = h.causal ? smaller(s.keys, lanes_up(first + r + kTileRows)) : s.keys;
    strip<false, false>(scores + r * s.scores, s.scores, rows + r * h.head_dim, h.head_dim, packed, h.head_dim, 0,
                        h.head_dim, used, s.keys);
  }
}

// out[count in whole tiles, width] = weights . packed rows (of keys); causal: weights past the diagonal are zero.
template <class T>
KERNELS_INLINE void mix_block(float* out, const HeadSizes& s, const float* weights, const float* packed,
                              const AttentionHead<T>& h, int64_t first, int64_t count) {
  for (int64_t r = 0; r < count; r += kTileRows) {
    int64_t keys = h.causal ? smaller(h.key_length, first + r + kTileRows) : h.key_length;
    strip<false, false>(out + r * s.width, s.width, weights + r * s.scores, s.scores, packed, h.key_length, 0, keys,
                        s.width, s.width);
  }
}

// out[keys, width] += weights^T . packed block rows.
template <class T>
KERNELS_INLINE void mix_transposed(float* out, const HeadSizes& s, const float* weights, const float* packed,
                                   const AttentionHead<T>& h, int64_t first, int64_t count) {
  int64_t keys = h.causal ? smaller(h.key_length, first + count) : h.key_length;
  for (int64_t j = 0; j < keys; j += kTileRows) {
    int64_t from = h.causal && j > first ? j - first : 0;  // earlier queries do not see key j
    strip<true, true>(out + j * s.width, s.width, weights + j, s.scores, packed, count, from, count, s.width, s.width);
  }
}

// row = exp(row - largest); returns the sum.
KERNELS_INLINE float softmax_row(float* row, int64_t n, float& largest) {
  largest = largest_in(row, n);
  V m = broadcast(largest), sum = zero();
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    V e = exp_below(load(row + j) - m);
    store(row + j, e);
    sum = sum + e;
  }
  if (j < n) {
    V e = keep_first(exp_below(load(row + j) - m), n - j, zero());
    store(row + j, e);
    sum = sum + e;
  }
  return sum_of(sum);
}

KERNELS_INLINE void multiply_row(float* row, const float* factors, int64_t n) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) store(row + j, load(row + j) * load(factors + j));
  if (j < n) store(row + j, load(row + j) * load_part(factors + j, n - j));
}

int64_t attention_forward_scratch(int64_t query_length, int64_t key_length, int64_t head_dim) {
  HeadSizes s(query_length, key_length, head_dim);
  return ForwardScratch(nullptr, s, key_length, head_dim).floats;
}

template <class T>
void attention_forward(const AttentionHead<T>& h, float* base) {
  HeadSizes s(h.query_length, h.key_length, h.head_dim);
  ForwardScratch m(base, s, h.key_length, h.head_dim);
  float scale = 1 / __builtin_sqrtf(float(h.head_dim));
  Draws draws = draws_of(h.key, h.dropout, 1 / (1 - h.dropout));
  pack_transposed(m.keys_t, h.k, h.stride, h.head_dim, h.key_length);
  pack_rows(m.values, h.v, h.stride, h.key_length, h.head_dim);
  for (int64_t first = 0; first < h.query_length; first += s.block) {
    int64_t count = smaller(s.block, h.query_length - first);
    copy_block(m.queries, h.q + first * h.stride, h.stride, count, h.head_dim, scale);
    score_block(m.scores, s, m.queries, m.keys_t, h, first, count);
    float sums[kQueryBlock];
    for (int64_t r = 0; r < tile_up(count); ++r) {
      float* row = m.scores + r * s.scores;
      int64_t i = smaller(first + r, h.query_length - 1), seen = h.causal ? i + 1 : h.key_length;
      float largest;
      sums[r] = softmax_row(row, seen, largest);
      zero(row + seen, s.scores - seen);
      if (r >= count) continue;
      if (h.lse) h.lse[i] = float(double(largest) + __builtin_log(double(sums[r])));
      if (h.dropout > 0) {
        factors_from(m.factors, h.first_draw + uint64_t(i * h.key_length), seen, draws);
        multiply_row(row, m.factors, seen);
      }
    }
    mix_block(m.out, s, m.scores, m.values, h, first, count);
    for (int64_t r = 0; r < count; ++r)
      copy_rows(h.o + (first + r) * h.stride, h.stride, m.out + r * s.width, s.width, 1, h.head_dim, 1 / sums[r]);
  }
}

int64_t attention_backward_scratch(int64_t query_length, int64_t key_length, int64_t head_dim) {
  HeadSizes s(query_length, key_length, head_dim);
  return BackwardScratch(nullptr, s, key_length, head_dim).floats;
}

template <class T>
KERNELS_INLINE float dot(const T* a, const T* b, int64_t n) {
  V sum = zero();
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) sum = fma(load(a + j), load(b + j), sum);
  if (j < n) sum = fma(load_part(a + j, n - j), load_part(b + j, n - j), sum);
  return sum_of(sum);
}

// weights = exp(scores - lse) (times the dropout factor), d_scores = exp(scores - lse) * (d_weights * factor - mean),
// where mean = sum over keys of weight * d_weight = d_out . out.
KERNELS_INLINE void backward_row(float* weights, float* d_scores, const float* factors, int64_t n, float lse,
                                 float mean) {
  V l = broadcast(lse), c = broadcast(mean);
  for (int64_t j = 0; j < n; j += kLanes) {
    V p = exp_below(load(weights + j) - l), d = load(d_scores + j), kept = p;
    if (factors) {
      V f = load(factors + j);
      kept = p * f, d = d * f;
    }
    store(weights + j, kept);
    store(d_scores + j, p * (d - c));
  }
}

template <class T>
void attention_backward(const AttentionHead<T>& h, float* base) {
  HeadSizes s(h.query_length, h.key_length, h.head_dim);
  BackwardScratch m(base, s, h.key_length, h.head_dim);
  float scale = 1 / __builtin_sqrtf(float(h.head_dim));
  Draws draws = draws_of(h.key, h.dropout, 1 / (1 - h.dropout));
  pack_transposed(m.keys_t, h.k, h.stride, h.head_dim, h.key_length);
  pack_transposed(m.values_t, h.v, h.stride, h.head_dim, h.key_length);
  pack_rows(m.keys, h.k, h.stride, h.key_length, h.head_dim);
  zero(m.dk, tile_up(h.key_length) * s.width);
  zero(m.dv, tile_up(h.key_length) * s.width);
  for (int64_t first = 0; first < h.query_length; first += s.block) {
    int64_t count = smaller(s.block, h.query_length - first);
    const T* d_o = h.d_o + first * h.stride;
    copy_block(m.queries, h.q + first * h.stride, h.stride, count, h.head_dim, scale);
    copy_block(m.d_out, d_o, h.stride, count, h.head_dim, 1);
    pack_rows(m.queries_b, m.queries, h.head_dim, count, h.head_dim);
    pack_rows(m.d_out_b, m.d_out, h.head_dim, count, h.head_dim);
    score_block(m.weights, s, m.queries, m.keys_t, h, first, count);
    score_block(m.d_scores, s, m.d_out, m.values_t, h, first, count);
    for (int64_t r = 0; r < tile_up(count); ++r) {
      float *weights = m.weights + r * s.scores, *d_scores = m.d_scores + r * s.scores;
      int64_t i = first + r, seen = r >= count ? 0 : h.causal ? i + 1 : h.key_length;
      if (seen > 0) {
        if (h.dropout > 0) factors_from(m.factors, h.first_draw + uint64_t(i * h.key_length), seen, draws);
        float mean = dot(d_o + r * h.stride, h.o + i * h.stride, h.head_dim);
        backward_row(weights, d_scores, h.dropout > 0 ? m.factors : nullptr, seen, h.lse[i], mean);
      }
      zero(weights + seen, s.scores - seen);
      zero(d_scores + seen, s.scores - seen);
    }
    mix_block(m.dq, s, m.d_scores, m.keys, h, first, count);
    copy_rows(h.dq + first * h.stride, h.stride, m.dq, s.width, count, h.head_dim, scale);
    mix_transposed(m.dv, s, m.weights, m.d_out_b, h, first, count);
    mix_transposed(m.dk, s, m.d_scores, m.queries_b, h, first, count);
  }
  copy_rows(h.dk, h.stride, m.dk, s.width, h.key_length, h.head_dim, 1);
  copy_rows(h.dv, h.stride, m.dv, s.width, h.key_length, h.head_dim, 1);
}

}  // namespace
}  // namespace kernels
