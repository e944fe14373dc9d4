// SPDX-License-Identifier: Apache-2.0
// Multi-head scaled dot-product attention that never stores the score matrix (cappa.md 1.3). Scores
// are divided by sqrt(head_dim) in f32, and masked scores become the lowest float. A softmax of
// each row gives the weights, with optional dropout.
#pragma once

#include "base/random.hpp"
#include "kernels/check_views.hpp"

namespace kernels {

enum class Mask {
  full,         // every query sees every key
  causal,       // query i sees keys j <= i (query_length == key_length)
  per_example,  // causal where flags[b] != 0, full elsewhere
};

struct AttentionShape {
  int64_t batch = 0, heads = 0, query_length = 0, key_length = 0, head_dim = 0;
  Mask mask = Mask::full;
  View flags{};  // u8 [batch], only for per_example
  // Dropout rate of the attention weights. Weight (b, h, i, j) has the draw index
  // (((first_example + b) * heads + h) * query_length + i) * key_length + j. It is kept if
  // stream.uniform(index) >= dropout; kept values are divided by 1 - dropout.
  float dropout = 0;
  base::Stream stream{};
  int64_t first_example = 0;
  // Optional packed rows, i32 [batch + 1]: example b has the rows [offsets[b], offsets[b + 1]) of q
  // and o (of k and v). They are the first rows of its sequence, at most query_length (key_length).
  // Without offsets every example has query_length (key_length) rows. Packed rows exclude dropout.
  View query_offsets{}, key_offsets{};
  // Elements from a row of q and dq (of k, v, dk and dv) to the next; 0: row(), without gaps. On
  // GPUs these tensors may be columns of one matrix, such as the result of one product.
  int64_t query_stride = 0, key_stride = 0;

  int64_t row() const { return heads * head_dim; }  // elements of a row
  int64_t next_query() const { return query_stride ? query_stride : row(); }
  int64_t next_key() const { return key_stride ? key_stride : row(); }
};

// All tensors have one type: f32, bf16 or (on GPUs) f16. Only lse is always f32; it has
// query_length elements for every head. q and o are [batch, query_length, heads, head_dim], k and v
// are [batch, key_length, heads, head_dim], without gaps unless the shape has strides.
//
// For 16-bit tensors, softmax and sums are f32. The products read weights and gradients of scores
// that are rounded to the tensors' type. Forward rounds the weights before it divides by their sum.
struct AttentionForward {
  static constexpr Op op = Op::attention_forward;
  View o;  // output
  // optional [batch, heads, query_length]: log of the sum of exponentials, saved for backward
  View lse{};
  View q, k, v;
  AttentionShape shape;
};
size_t cuda_scratch(const AttentionForward&);

struct AttentionBackward {
  static constexpr Op op = Op::attention_backward;
  View dq, dk, dv;  // overwritten
  View d_o;         // gradient of o
  View q, k, v, o, lse;
  AttentionShape shape;
};
size_t cuda_scratch(const AttentionBackward&);

inline void check_attention_shape(Op op, const AttentionShape& s) {
  need_size(op, "batch", s.batch);
  need_size(op, "heads", s.heads, 1);
  need_size(op, "query_length", s.query_length, 1);
  need_size(op, "key_length", s.key_length, 1);
  need_size(op, "head_dim", s.head_dim, 1);
  CHECK(s.mask == Mask::full || s.query_length == s.key_length,
        "{}: a causal mask needs as many queries ({}) as keys ({})", name_of(op), s.query_length,
        s.key_length);
  if (s.mask == Mask::per_example) need_view(op, "flags", s.flags, DType::u8, {s.batch});
  CHECK(s.dropout >= 0 && s.dropout < 1, "{}: dropout is {}, must lie in [0, 1)", name_of(op),
        s.dropout);
  allow_view(op, "query_offsets", s.query_offsets, DType::i32, {s.batch + 1});
  allow_view(op, "key_offsets", s.key_offsets, DType::i32, {s.batch + 1});
  CHECK(s.dropout == 0 || (s.query_offsets.none() && s.key_offsets.none()),
        "{}: packed rows exclude dropout", name_of(op));
}

// Returns the rows of a tensor.
inline int64_t attention_rows(const View& view, const AttentionShape& s, int64_t stride) {
  return view.count < s.row() ? 0 : (view.count - s.row()) / stride + 1;
}

// Checks a tensor of sequences with `rows` packed rows, or with all rows.
inline void need_attention_view(Op op, const char* name, const View& view, DType type,
                                const AttentionShape& s, int64_t length, const View& offsets,
                                int64_t rows, int64_t stride) {
  if (offsets.none() && stride == s.row())
    return need_view(op, name, view, type, {s.batch, length, s.heads, s.head_dim});
  need_matrix(op, name, view, type, offsets.none() ? s.batch * length : rows, s.row(), stride);
  CHECK(rows <= s.batch * length, "{}: {} has {} rows, more than {} of {}", name_of(op), name, rows,
        s.batch, length);
}
inline void need_queries(Op op, const char* name, const View& view, const View& q,
                         const AttentionShape& s, int64_t stride) {
  need_attention_view(op, name, view, q.type, s, s.query_length, s.query_offsets,
                      attention_rows(q, s, s.next_query()), stride);
}
inline void need_keys(Op op, const char* name, const View& view, const View& k,
                      const AttentionShape& s) {
  need_attention_view(op, name, view, k.type, s, s.key_length, s.key_offsets,
                      attention_rows(k, s, s.next_key()), s.next_key());
}
// Bytes of k.
inline int64_t attention_key_bytes(const View& k, const AttentionShape& s) {
  return attention_rows(k, s, s.next_key()) * s.row() * device::size_of(k.type);
}

// Returns the pairs of query and key that count as work. Flags and offsets may not be read here, so
// a per-example mask counts as full. The keys of packed rows count as full sequences.
inline int64_t attention_pairs(const AttentionShape& s, int64_t queries) {
  return queries / s.head_dim * (s.mask == Mask::causal ? s.query_length + 1 : 2 * s.key_length) /
         2;
}

inline void check(const AttentionForward& a) {
  const AttentionShape& s = a.shape;
  check_attention_shape(a.op, s);
  need_activation(a.op, "q", a.q, {a.q.count});
  need_queries(a.op, "o", a.o, a.q, s, s.row());
  allow_view(a.op, "lse", a.lse, DType::f32, {s.batch, s.heads, s.query_length});
  need_queries(a.op, "q", a.q, a.q, s, s.next_query());
  CHECK(a.k.type == a.q.type, "{}: k holds {}, not {}", name_of(a.op), device::name_of(a.k.type),
        device::name_of(a.q.type));
  need_keys(a.op, "k", a.k, a.k, s);
  need_keys(a.op, "v", a.v, a.k, s);
}

// Counts two products.
inline Cost cost(const AttentionForward& a) {
  return {4 * attention_pairs(a.shape, a.o.count) * a.shape.head_dim,
          2 * a.o.bytes() + 2 * attention_key_bytes(a.k, a.shape) + a.lse.bytes()};
}

inline void check(const AttentionBackward& a) {
  const AttentionShape& s = a.shape;
  check_attention_shape(a.op, s);
  need_activation(a.op, "q", a.q, {a.q.count});
  for (auto [name, view] : {std::pair{"d_o", &a.d_o}, {"o", &a.o}})
    need_queries(a.op, name, *view, a.q, s, s.row());
  for (auto [name, view] : {std::pair{"dq", &a.dq}, {"q", &a.q}})
    need_queries(a.op, name, *view, a.q, s, s.next_query());
  for (auto [name, view] : {std::pair{"dk", &a.dk}, {"dv", &a.dv}, {"k", &a.k}, {"v", &a.v}})
    need_keys(a.op, name, *view, a.k, s);
  CHECK(a.k.type == a.q.type, "{}: k holds {}, not {}", name_of(a.op), device::name_of(a.k.type),
        device::name_of(a.q.type));
  need_view(a.op, "lse", a.lse, DType::f32, {s.batch, s.heads, s.query_length});
}

// Counts four products. The product that recomputes the scores is not useful work.
inline Cost cost(const AttentionBackward& a) {
  return {8 * attention_pairs(a.shape, a.o.count) * a.shape.head_dim,
          4 * a.o.bytes() + 4 * attention_key_bytes(a.k, a.shape) + a.lse.bytes()};
}

}  // namespace kernels
