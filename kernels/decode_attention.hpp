// SPDX-License-Identifier: Apache-2.0
// Attention of one query per sequence over a cache of keys and values, for text that is generated
// token by token. Scores are divided by sqrt(head_dim); a softmax gives the weights (cappa.md 1.3).
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// A row of the cache holds the keys (values) of all heads. Query r attends to `keys` rows: the rows
// index[r * keys + j], or the block of rows that begins at first[r]. Exactly one of the two is
// given. With an index, beams share and exchange their past without copies of the cache. Negative
// entries at the end of a row's index, but for its first entry, give the row fewer keys.
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

}  // namespace kernels
