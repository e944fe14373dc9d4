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

void check_tensor(Op op, const char* name, const View& view, const View& like,
                  const AttentionShape& s, int64_t length, const View& offsets) {
  if (offsets.none())
    return need_view(op, name, view, like.type, {s.batch, length, s.heads, s.head_dim});
  int64_t row = s.heads * s.head_dim;
  need_view(op, name, view, like.type, {like.count / row, row});
  CHECK(view.count <= s.batch * length * row, "{}: {} has {} rows, more than {} of {}", name_of(op),
        name, view.count / row, s.batch, length);
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
  check_tensor(a.op, "o", a.o, a.q, s, s.query_length, s.query_offsets);
  allow_view(a.op, "lse", a.lse, DType::f32, {s.batch, s.heads, s.query_length});
  check_tensor(a.op, "q", a.q, a.q, s, s.query_length, s.query_offsets);
  CHECK(a.k.type == a.q.type, "{}: k holds {}, not {}", name_of(a.op), device::name_of(a.k.type),
        device::name_of(a.q.type));
  check_tensor(a.op, "k", a.k, a.k, s, s.key_length, s.key_offsets);
  check_tensor(a.op, "v", a.v, a.k, s, s.key_length, s.key_offsets);
}

// Counts two products.
Cost cost(const AttentionForward& a) {
  return {4 * pairs(a.shape, a.q.count) * a.shape.head_dim,
          2 * a.q.bytes() + 2 * a.k.bytes() + a.lse.bytes()};
}

void check(const AttentionBackward& a) {
  const AttentionShape& s = a.shape;
  check_shape(a.op, s);
  need_activation(a.op, "q", a.q, {a.q.count});
  for (auto [name, view] : {std::pair{"dq", &a.dq}, {"d_o", &a.d_o}, {"q", &a.q}, {"o", &a.o}})
    check_tensor(a.op, name, *view, a.q, s, s.query_length, s.query_offsets);
  for (auto [name, view] : {std::pair{"dk", &a.dk}, {"dv", &a.dv}, {"k", &a.k}, {"v", &a.v}})
    check_tensor(a.op, name, *view, a.k, s, s.key_length, s.key_offsets);
  CHECK(a.k.type == a.q.type, "{}: k holds {}, not {}", name_of(a.op), device::name_of(a.k.type),
        device::name_of(a.q.type));
  need_view(a.op, "lse", a.lse, DType::f32, {s.batch, s.heads, s.query_length});
}

// Counts four products. The product that recomputes the scores is not useful work.
Cost cost(const AttentionBackward& a) {
  return {8 * pairs(a.shape, a.q.count) * a.shape.head_dim,
          4 * a.q.bytes() + 4 * a.k.bytes() + a.lse.bytes()};
}

}  // namespace kernels
