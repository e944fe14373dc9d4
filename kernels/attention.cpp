// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of attention.
#include "kernels/attention.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

void check_shape(Op op, const AttentionShape& s) {
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
int64_t rows_of(const View& view, const AttentionShape& s, int64_t stride) {
  return view.count < s.row() ? 0 : (view.count - s.row()) / stride + 1;
}

// A tensor of sequences: `rows` of them are packed, or all are there.
void check_tensor(Op op, const char* name, const View& view, DType type, const AttentionShape& s,
                  int64_t length, const View& offsets, int64_t rows, int64_t stride) {
  if (offsets.none() && stride == s.row())
    return need_view(op, name, view, type, {s.batch, length, s.heads, s.head_dim});
  need_matrix(op, name, view, type, offsets.none() ? s.batch * length : rows, s.row(), stride);
  CHECK(rows <= s.batch * length, "{}: {} has {} rows, more than {} of {}", name_of(op), name, rows,
        s.batch, length);
}
void check_queries(Op op, const char* name, const View& view, const View& q,
                   const AttentionShape& s, int64_t stride) {
  check_tensor(op, name, view, q.type, s, s.query_length, s.query_offsets,
               rows_of(q, s, s.next_query()), stride);
}
void check_keys(Op op, const char* name, const View& view, const View& k, const AttentionShape& s) {
  check_tensor(op, name, view, k.type, s, s.key_length, s.key_offsets, rows_of(k, s, s.next_key()),
               s.next_key());
}
// Bytes of k.
int64_t key_bytes(const View& k, const AttentionShape& s) {
  return rows_of(k, s, s.next_key()) * s.row() * device::size_of(k.type);
}

// Returns the pairs of query and key that count as work. Flags and offsets may not be read here, so
// a per-example mask counts as full. The keys of packed rows count as full sequences.
int64_t pairs(const AttentionShape& s, int64_t queries) {
  return queries / s.head_dim * (s.mask == Mask::causal ? s.query_length + 1 : 2 * s.key_length) /
         2;
}

}  // namespace

void check(const AttentionForward& a) {
  const AttentionShape& s = a.shape;
  check_shape(a.op, s);
  need_activation(a.op, "q", a.q, {a.q.count});
  check_queries(a.op, "o", a.o, a.q, s, s.row());
  allow_view(a.op, "lse", a.lse, DType::f32, {s.batch, s.heads, s.query_length});
  check_queries(a.op, "q", a.q, a.q, s, s.next_query());
  CHECK(a.k.type == a.q.type, "{}: k holds {}, not {}", name_of(a.op), device::name_of(a.k.type),
        device::name_of(a.q.type));
  check_keys(a.op, "k", a.k, a.k, s);
  check_keys(a.op, "v", a.v, a.k, s);
}

// Counts two products.
Cost cost(const AttentionForward& a) {
  return {4 * pairs(a.shape, a.o.count) * a.shape.head_dim,
          2 * a.o.bytes() + 2 * key_bytes(a.k, a.shape) + a.lse.bytes()};
}

void check(const AttentionBackward& a) {
  const AttentionShape& s = a.shape;
  check_shape(a.op, s);
  need_activation(a.op, "q", a.q, {a.q.count});
  for (auto [name, view] : {std::pair{"d_o", &a.d_o}, {"o", &a.o}})
    check_queries(a.op, name, *view, a.q, s, s.row());
  for (auto [name, view] : {std::pair{"dq", &a.dq}, {"q", &a.q}})
    check_queries(a.op, name, *view, a.q, s, s.next_query());
  for (auto [name, view] : {std::pair{"dk", &a.dk}, {"dv", &a.dv}, {"k", &a.k}, {"v", &a.v}})
    check_keys(a.op, name, *view, a.k, s);
  CHECK(a.k.type == a.q.type, "{}: k holds {}, not {}", name_of(a.op), device::name_of(a.k.type),
        device::name_of(a.q.type));
  need_view(a.op, "lse", a.lse, DType::f32, {s.batch, s.heads, s.query_length});
}

// Counts four products. The product that recomputes the scores is not useful work.
Cost cost(const AttentionBackward& a) {
  return {8 * pairs(a.shape, a.o.count) * a.shape.head_dim,
          4 * a.o.bytes() + 4 * key_bytes(a.k, a.shape) + a.lse.bytes()};
}

}  // namespace kernels
