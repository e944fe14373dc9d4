// SPDX-License-Identifier: Apache-2.0
// Attention of one query per sequence over a cache of keys and values, for text that is generated
// token by token. Scores are divided by sqrt(head_dim); a softmax gives the weights (cappa.md 1.3).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// A row of the cache holds the keys (values) of all heads. Query r attends to `keys` rows: the rows
// index[r * keys + j], or the block of rows that begins at first[r]. Exactly one of the two is
// given. With an index, beams share and exchange their past without copies of the cache. A row's
// index may end in negative entries, which are not keys. Its first entry is always a key.
//
// All tensors have one type: f32, bf16 or (on GPUs) f16. Softmax and sums are f32. The weights of
// values are rounded to the tensors' type before they are divided by their sum, as in
// AttentionForward. The bits of a row depend neither on other rows nor on the number of threads.
struct DecodeAttention {
  static constexpr Op op = Op::decode_attention;
  View o;        // [rows, heads, head_dim]
  View q;        // [rows, heads, head_dim]
  View k, v;     // [cache_rows, heads, head_dim]
  View index{};  // i32 [rows, keys], each in [0, cache_rows), then -1
  View first{};  // i32 [rows], each in [0, cache_rows - keys]
  int64_t rows = 0, heads = 0, head_dim = 0, keys = 0, cache_rows = 0;
};

inline void check(const DecodeAttention& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "heads", a.heads, 1);
  need_size(a.op, "head_dim", a.head_dim, 1);
  need_size(a.op, "keys", a.keys, 1);
  need_size(a.op, "cache_rows", a.cache_rows, a.keys);
  need_activation(a.op, "q", a.q, {a.rows, a.heads, a.head_dim});
  need_view(a.op, "o", a.o, a.q.type, {a.rows, a.heads, a.head_dim});
  need_view(a.op, "k", a.k, a.q.type, {a.cache_rows, a.heads, a.head_dim});
  need_view(a.op, "v", a.v, a.q.type, {a.cache_rows, a.heads, a.head_dim});
  CHECK(a.rows == 0 || a.index.none() != a.first.none(),
        "{}: exactly one of index and first must be given", name_of(a.op));
  allow_view(a.op, "index", a.index, DType::i32, {a.rows, a.keys});
  allow_view(a.op, "first", a.first, DType::i32, {a.rows});
}

// Counts two products with all keys. Queries that share keys read them from memory once, but are
// counted alone.
inline Cost cost(const DecodeAttention& a) {
  const int64_t read = a.rows * a.keys * a.heads * a.head_dim;
  return {4 * read, a.q.bytes() + a.o.bytes() + 2 * read * device::size_of(a.q.type) +
                        a.index.bytes() + a.first.bytes()};
}

}  // namespace kernels
