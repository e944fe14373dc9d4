// SPDX-License-Identifier: Apache-2.0
// Attention of one (batch, head), forward and backward, block of queries by block of queries.
// vector_math.hpp explains how this file is compiled. Scores exist only for one block:
// [block, key_length] floats of a thread's scratch. If the tensors are bfloat16, weights (before
// they are divided by their sum) and gradients of scores are rounded to it for the products.
#pragma once

#include "kernels/cpu/attention_tile.hpp"
#include "kernels/cpu/scalar_log.hpp"
#include "kernels/cpu/vector_rows.hpp"

namespace kernels {
namespace {

constexpr int64_t kQueryBlock = 48;  // at most; multiple of kTileRows

KERNELS_INLINE int64_t tile_up(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// Sizes that forward and backward share; they depend on the shape alone.
struct HeadSizes {
  int64_t block;  // queries per block, all blocks about equal
  // Queries that scratch has room for. A shorter sequence in the same scratch may have larger
  // blocks, but never larger than this.
  int64_t room;
  // Row length of a block of scores: keys, padded so that whole tiles can be read and written.
  int64_t scores;
  int64_t keys;   // key_length in whole vectors
  int64_t width;  // head_dim in whole vectors
  HeadSizes(int64_t query_length, int64_t key_length, int64_t head_dim)
      : block(0),
        room(smaller(kQueryBlock, tile_up(query_length))),
        scores(lanes_up(key_length + kTileRows)),
        keys(lanes_up(key_length)),
        width(lanes_up(head_dim)) {
    int64_t blocks = (query_length + kQueryBlock - 1) / kQueryBlock;
    // Without queries no block is computed.
    if (blocks > 0) block = tile_up((query_length + blocks - 1) / blocks);
  }
};

// Divides a thread's scratch into pieces aligned to 64 bytes. Floats and words have the same size.
struct Scratch {
  float* next;
  int64_t used = 0;
  template <class Element>
  void take(Element*& piece, int64_t count) {
    static_assert(sizeof(Element) == sizeof(float));
    piece = next ? reinterpret_cast<Element*>(next + used) : nullptr;
    used += (count + 15) / 16 * 16;
  }
};

template <class T>
struct ForwardScratch {
  Operand<T>*keys_t, *values, *queries, *weights;
  float *scores, *out, *factors;
  int64_t floats;
  ForwardScratch(float* base, const HeadSizes& s, int64_t key_length, int64_t head_dim) {
    Scratch scratch{base};
    scratch.take(keys_t, packed_size<T>(head_dim, key_length));
    scratch.take(values, packed_size<T>(key_length, head_dim));
    scratch.take(queries, s.room * steps_of<T>(head_dim));
    scratch.take(scores, s.room * s.scores);
    scratch.take(weights, kPairs<T> ? s.room * s.scores / 2 : 0);
    scratch.take(out, s.room * s.width);
    scratch.take(factors, key_length + 4 * kLanes);
    floats = scratch.used;
  }
};

// The arrays of the backward pass in its scratch. There are many members because each array has
// one.
template <class T>
struct BackwardScratch {
  Operand<T>*keys_t, *values_t, *keys, *queries, *d_out, *queries_b, *d_out_b, *rows, *columns;
  float *weights, *d_scores, *dq, *dk, *dv, *factors;
  int64_t floats;
  BackwardScratch(float* base, const HeadSizes& s, int64_t key_length, int64_t head_dim) {
    Scratch scratch{base};
    scratch.take(keys_t, packed_size<T>(head_dim, key_length));
    scratch.take(values_t, packed_size<T>(head_dim, key_length));
    scratch.take(keys, packed_size<T>(key_length, head_dim));
    scratch.take(queries, s.room * steps_of<T>(head_dim));
    scratch.take(d_out, s.room * steps_of<T>(head_dim));
    scratch.take(queries_b, packed_size<T>(s.room, head_dim));
    scratch.take(d_out_b, packed_size<T>(s.room, head_dim));
    scratch.take(weights, s.room * s.scores);
    scratch.take(d_scores, s.room * s.scores);
    scratch.take(rows, kPairs<T> ? s.room * s.scores / 2 : 0);
    scratch.take(columns, kPairs<T> ? s.room * s.scores / 2 : 0);
    scratch.take(dq, s.room * s.width);
    scratch.take(dk, tile_up(key_length) * s.width);
    scratch.take(dv, tile_up(key_length) * s.width);
    scratch.take(factors, key_length + 4 * kLanes);
    floats = scratch.used;
  }
};

// out = in * factor, n of the elements of each row.
template <class To, class From>
KERNELS_INLINE void convert_rows(To* out, int64_t out_stride, const From* in, int64_t in_stride,
                                 int64_t rows, int64_t n, float factor) {
  V f = broadcast(factor);
  for (int64_t r = 0; r < rows; ++r, out += out_stride, in += in_stride) {
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes) store(out + j, load(in + j) * f);
    if (j < n) store_part(out + j, load_part(in + j, n - j) * f, n - j);
  }
}

template <class Element>
KERNELS_INLINE void zero(Element* p, int64_t count) {
  __builtin_memset(p, 0, size_t(count) * sizeof(Element));
}

// Prefetches rows of a head, which are far apart in memory. kNear: 3 = into the first-level cache,
// 2 = into the second.
template <int kNear = 3, class T>
KERNELS_INLINE void prefetch_rows(const T* rows, int64_t stride, int64_t count, int64_t n) {
  for (int64_t r = 0; r < count; ++r, rows += stride)
    for (int64_t j = 0; j < n; j += 64 / int64_t(sizeof(T))) __builtin_prefetch(rows + j, 0, kNear);
}

// Prefetches the first reads of a later head, forward or backward, while scores of a tile of
// queries are computed. Each tile fetches its share, so that all rows are fetched in the end.
// Prefetching rows after the last does no harm. Heads are short: reading would cost a fifth of
// their time.
enum class Ahead { none, forward, backward };
template <Ahead kAhead, class T>
KERNELS_INLINE void prefetch_next(const AttentionHead<T>& h, int64_t query) {
  if (kAhead == Ahead::none) return;
  const int64_t end = smaller(query + kTileRows, h.query_length),
                key = query * h.key_length / h.query_length,
                keys = end * h.key_length / h.query_length - key;
  if (h.next_queries) {
    const int64_t at = h.next_queries + query * h.stride;
    prefetch_rows<2>(h.q + at, h.stride, end - query, h.head_dim);
    if (kAhead == Ahead::backward) {
      prefetch_rows<2>(h.d_o + at, h.stride, end - query, h.head_dim);
      prefetch_rows<2>(h.o + at, h.stride, end - query, h.head_dim);
    }
  }
  if (h.next_keys) {
    const int64_t at = h.next_keys + key * h.stride;
    prefetch_rows<2>(h.k + at, h.stride, keys, h.head_dim);
    prefetch_rows<2>(h.v + at, h.stride, keys, h.head_dim);
  }
}

// Copies a block of queries, or of gradients of the output, as the left operand of a product. Rows
// of n elements are stored without gaps. Rows of zeros fill the last tile.
template <class T>
KERNELS_INLINE void copy_block(float* out, const T* in, int64_t stride, int64_t rows, int64_t n) {
  convert_rows(out, n, in, stride, rows, n, 1);
  zero(out + rows * n, (tile_up(rows) - rows) * n);
}
KERNELS_INLINE void copy_block(uint32_t* out, const uint16_t* in, int64_t stride, int64_t rows,
                               int64_t n) {
  int64_t steps = steps_of<uint16_t>(n);
  for (int64_t r = 0; r < rows; ++r, in += stride, out += steps) {
    out[steps - 1] = 0;  // clears the second half of an odd last pair
    __builtin_memcpy(out, in, size_t(n) * sizeof(uint16_t));
  }
  zero(out, (tile_up(rows) - rows) * steps);
}

// Operands of products from a block of weights [rows in whole tiles, row]. They are the floats
// themselves, rounded if the tensors are bfloat16, or pairs of bfloat16 in `out`. by_rows pairs
// neighbours in a row. by_columns pairs neighbouring rows, for a transposed operand.
template <class T>
KERNELS_INLINE void round_weights(float* weights, int64_t count) {
  if (sizeof(T) == sizeof(float) || kPairs<T>) return;
  for (int64_t j = 0; j < count; j += kLanes)
    store(weights + j, value_of_bits(bf16_bits(load(weights + j))));
}
KERNELS_INLINE const float* by_rows(float*, const float* weights, int64_t, int64_t) {
  return weights;
}
KERNELS_INLINE const float* by_columns(float*, const float* weights, int64_t, int64_t) {
  return weights;
}
#ifdef KERNELS_AVX512_BF16
KERNELS_INLINE const uint32_t* by_rows(uint32_t* out, const float* weights, int64_t rows,
                                       int64_t row) {
  static_assert(kTileRows % 2 == 0);  // the number of vectors is even
  for (int64_t j = 0; j < rows * row; j += 2 * kLanes)
    store_words(out + j / 2, bf16_of_two(load(weights + j), load(weights + j + kLanes)));
  return out;
}
KERNELS_INLINE const uint32_t* by_columns(uint32_t* out, const float* weights, int64_t rows,
                                          int64_t row) {
  for (int64_t r = 0; r < rows; r += 2)
    for (int64_t j = 0; j < row; j += kLanes) {
      const float* pair = weights + r * row + j;
      store_words(out + r / 2 * row + j, pairs_of(load(pair), load(pair + row)));
    }
  return out;
}
#endif

// Computes the scores of a block, rows . packed keys, for whole tiles of rows. Causal heads skip
// tiles beyond the diagonal.
template <Ahead kAhead, class T>
KERNELS_INLINE void score_block(float* scores, const HeadSizes& s, const Operand<T>* rows,
                                const Operand<T>* packed, const AttentionHead<T>& h, int64_t first,
                                int64_t count) {
  int64_t steps = steps_of<T>(h.head_dim);
  for (int64_t r = 0; r < count; r += kTileRows) {
    prefetch_next<kAhead>(h, first + r);
    int64_t used = h.causal ? smaller(s.keys, lanes_up(first + r + kTileRows)) : s.keys;
    strip<T, false, false>(scores + r * s.scores, s.scores, rows + r * steps, steps, packed, steps,
                           0, steps, used, s.keys);
  }
}

// out[count in whole tiles, width] = weights . packed rows of values or keys. Causal heads have
// zero weights beyond the diagonal.
template <class T>
KERNELS_INLINE void mix_block(float* out, const HeadSizes& s, const Operand<T>* weights,
                              const Operand<T>* packed, const AttentionHead<T>& h, int64_t first,
                              int64_t count) {
  int64_t row = steps_of<T>(s.scores);
  for (int64_t r = 0; r < count; r += kTileRows) {
    int64_t keys = h.causal ? smaller(h.key_length, first + r + kTileRows) : h.key_length;
    strip<T, false, false>(out + r * s.width, s.width, weights + r * row, row, packed,
                           steps_of<T>(h.key_length), 0, steps_of<T>(keys), s.width, s.width);
  }
}

// out[keys, width] += weights^T . packed rows of a block of queries or of their gradients.
template <class T>
KERNELS_INLINE void mix_transposed(float* out, const HeadSizes& s, const Operand<T>* weights,
                                   const Operand<T>* packed, const AttentionHead<T>& h,
                                   int64_t first, int64_t count) {
  int64_t keys = h.causal ? smaller(h.key_length, first + count) : h.key_length,
          steps = steps_of<T>(count);
  for (int64_t j = 0; j < keys; j += kTileRows) {
    int64_t from = h.causal && j > first ? j - first : 0;  // earlier queries do not see key j
    if (kPairs<T>) from /= 2;  // the pair may start one query early, whose weight is 0
    strip<T, true, true>(out + j * s.width, s.width, weights + j, s.scores, packed, steps, from,
                         steps, s.width, s.width);
  }
}

// row = exp(scale * row - largest), where `largest` is the largest element of scale * row. Returns
// the sum of the new row.
KERNELS_INLINE float softmax_row(float* row, int64_t n, float scale, float& largest) {
  largest = largest_in(row, n) * scale;
  V f = broadcast(scale), m = broadcast(-largest), sum = zero();
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    V e = exp_below(fma(load(row + j), f, m));
    store(row + j, e);
    sum = sum + e;
  }
  if (j < n) {
    V e = keep_first(exp_below(fma(load(row + j), f, m)), n - j, zero());
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

template <class T>
int64_t attention_forward_scratch(int64_t query_length, int64_t key_length, int64_t head_dim) {
  HeadSizes s(query_length, key_length, head_dim);
  return ForwardScratch<T>(nullptr, s, key_length, head_dim).floats;
}

template <Log kLog, class T>
void attention_forward(const AttentionHead<T>& h, float* base) {
  HeadSizes s(h.query_length, h.key_length, h.head_dim);
  ForwardScratch<T> m(base, s, h.key_length, h.head_dim);
  float scale = 1 / __builtin_sqrtf(float(h.head_dim));
  Draws draws = draws_of(h.key, h.dropout, 1 / (1 - h.dropout));
  pack_transposed(m.keys_t, h.k, h.stride, h.head_dim, h.key_length);
  pack_rows(m.values, h.v, h.stride, h.key_length, h.head_dim);
  for (int64_t first = 0; first < h.query_length; first += s.block) {
    int64_t count = smaller(s.block, h.query_length - first);
    copy_block(m.queries, h.q + first * h.stride, h.stride, count, h.head_dim);
    prefetch_rows(h.o + first * h.stride, h.stride, count, h.head_dim);
    score_block<Ahead::forward>(m.scores, s, m.queries, m.keys_t, h, first, count);
    float sums[kQueryBlock];
    for (int64_t r = 0; r < tile_up(count); ++r) {
      float* row = m.scores + r * s.scores;
      int64_t i = smaller(first + r, h.query_length - 1), seen = h.causal ? i + 1 : h.key_length;
      float largest;
      sums[r] = softmax_row(row, seen, scale, largest);
      zero(row + seen, s.scores - seen);
      if (r >= count) continue;
      if (h.lse) h.lse[i] = float(double(largest) + log_of<kLog>(double(sums[r])));
      if (h.dropout > 0) {
        factors_from(m.factors, h.first_draw + uint64_t(i * h.key_length), seen, draws);
        multiply_row(row, m.factors, seen);
      }
    }
    round_weights<T>(m.scores, tile_up(count) * s.scores);
    mix_block(m.out, s, by_rows(m.weights, m.scores, tile_up(count), s.scores), m.values, h, first,
              count);
    for (int64_t r = 0; r < count; ++r)
      convert_rows(h.o + (first + r) * h.stride, h.stride, m.out + r * s.width, s.width, 1,
                   h.head_dim, 1 / sums[r]);
  }
}

template <class T>
int64_t attention_backward_scratch(int64_t query_length, int64_t key_length, int64_t head_dim) {
  HeadSizes s(query_length, key_length, head_dim);
  return BackwardScratch<T>(nullptr, s, key_length, head_dim).floats;
}

template <class T>
KERNELS_INLINE float dot(const T* a, const T* b, int64_t n) {
  V sum = zero();
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) sum = fma(load(a + j), load(b + j), sum);
  if (j < n) sum = fma(load_part(a + j, n - j), load_part(b + j, n - j), sum);
  return sum_of(sum);
}

// Turns a row of scores into weights, and a row of gradients of weights into gradients of scores:
//   p = exp(scale * scores - lse)
//   weights = p * factor                          (factor: of dropout, 1 without)
//   d_scores = p * (d_weights * factor - mean)    (rounded once before p; mean = sum of weights *
//   d_weights = d_out . out)
KERNELS_INLINE void backward_row(float* weights, float* d_scores, const float* factors, int64_t n,
                                 float scale, float lse, float mean) {
  V s = broadcast(scale), l = broadcast(-lse), c = broadcast(mean);
  for (int64_t j = 0; j < n; j += kLanes) {
    V p = exp_below(fma(load(weights + j), s, l)), d = load(d_scores + j);
    if (factors) {
      V f = load(factors + j);
      store(weights + j, p * f);
      store(d_scores + j, p * fma(d, f, -c));
    } else {
      store(weights + j, p);
      store(d_scores + j, p * (d - c));
    }
  }
}

template <class T>
void attention_backward(const AttentionHead<T>& h, float* base) {
  HeadSizes s(h.query_length, h.key_length, h.head_dim);
  BackwardScratch<T> m(base, s, h.key_length, h.head_dim);
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
    const T* queries = h.q + first * h.stride;
    prefetch_rows(h.o + first * h.stride, h.stride, count, h.head_dim);
    copy_block(m.queries, queries, h.stride, count, h.head_dim);
    copy_block(m.d_out, d_o, h.stride, count, h.head_dim);
    pack_rows(m.queries_b, queries, h.stride, count, h.head_dim);
    pack_rows(m.d_out_b, d_o, h.stride, count, h.head_dim);
    score_block<Ahead::backward>(m.weights, s, m.queries, m.keys_t, h, first, count);
    prefetch_rows(h.dq + first * h.stride, h.stride, count, h.head_dim);
    score_block<Ahead::none>(m.d_scores, s, m.d_out, m.values_t, h, first, count);
    for (int64_t r = 0; r < tile_up(count); ++r) {
      float *weights = m.weights + r * s.scores, *d_scores = m.d_scores + r * s.scores;
      int64_t i = first + r, seen = r >= count ? 0 : h.causal ? i + 1 : h.key_length;
      if (seen > 0) {
        if (h.dropout > 0)
          factors_from(m.factors, h.first_draw + uint64_t(i * h.key_length), seen, draws);
        float mean = dot(d_o + r * h.stride, h.o + i * h.stride, h.head_dim);
        backward_row(weights, d_scores, h.dropout > 0 ? m.factors : nullptr, seen, scale, h.lse[i],
                     mean);
      }
      zero(weights + seen, s.scores - seen);
      zero(d_scores + seen, s.scores - seen);
    }
    int64_t next = first + s.block, left = smaller(s.block, h.query_length - next);
    prefetch_rows(h.q + next * h.stride, h.stride, left, h.head_dim);
    prefetch_rows(h.d_o + next * h.stride, h.stride, left, h.head_dim);
    const int64_t rows = tile_up(count);
    round_weights<T>(m.weights, rows * s.scores);
    round_weights<T>(m.d_scores, rows * s.scores);
    mix_block(m.dq, s, by_rows(m.rows, m.d_scores, rows, s.scores), m.keys, h, first, count);
    convert_rows(h.dq + first * h.stride, h.stride, m.dq, s.width, count, h.head_dim, scale);
    mix_transposed(m.dv, s, by_columns(m.columns, m.weights, rows, s.scores), m.d_out_b, h, first,
                   count);
    mix_transposed(m.dk, s, by_columns(m.columns, m.d_scores, rows, s.scores), m.queries_b, h,
                   first, count);
  }
  convert_rows(h.dk, h.stride, m.dk, s.width, h.key_length, h.head_dim, scale);
  convert_rows(h.dv, h.stride, m.dv, s.width, h.key_length, h.head_dim, 1);
}

}  // namespace
}  // namespace kernels
