// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of attention over a cache.
#include "kernels/decode_attention.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const DecodeAttention& a) {
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
Cost cost(const DecodeAttention& a) {
  const int64_t read = a.rows * a.keys * a.heads * a.head_dim;
  return {4 * read, a.q.bytes() + a.o.bytes() + 2 * read * device::size_of(a.q.type) +
                        a.index.bytes() + a.first.bytes()};
}

}  // namespace kernels
