#include "kernels/attention.hpp"

#include "base/narrow.hpp"
#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

void check_shape(Op op, const AttentionShape& s) {
  need_size(op, "batch", s.batch);
  need_size(op, "heads", s.heads, 1);
  need_size(op, "query_length", s.query_length, 1);
  need_size(op, "key_length", s.key_length, 1);
  need_size(op, "head_dim", s.head_dim, 1);
  CHECK(s.mask == Mask::full || s.query_length == s.key_length,
        "{}: a causal mask needs as many queries ({}) as keys ({})", name_of(op), s.query_length, s.key_length);
  if (s.mask == Mask::per_example) need_view(op, "flags", s.flags, DType::u8, {s.batch});
  CHECK(s.dropout >= 0 && s.dropout < 1, "{}: dropout is {}, must lie in [0, 1)", name_of(op), s.dropout);
  allow_view(op, "query_offsets", s.query_offsets, DType::i32, {s.batch + 1});
  allow_view(op, "key_offsets", s.key_offsets, DType::i32, {s.batch + 1});
  CHECK(s.dropout == 0 || (s.query_offsets.none() && s.key_offsets.none()), "{}: dropout of packed rows", name_of(op));
}

void check_tensor(Op op, const char* name, const View& view, const View& like, const AttentionShape& s, int64_t length,
                  const View& offsets) {
  if (offsets.none()) return need_view(op, name, view, like.type, {s.batch, length, s.heads, s.head_dim});
  int64_t row = s.heads * s.head_dim;
  need_view(op, name, view, like.type, {like.count / row, row});
  CHECK(view.count <= s.batch * length * row, "{}: {} has {} rows, more than {} of {}", name_of(op), name,
        view.count / row, s.batch, length);
}

// Pairs of query and key that count. Flags and offsets may not be read here, so a per-example mask counts as full, and
// so do the keys of packed rows.
int64_t pairs(const AttentionShape& s, int64_t queries) {
  return queries / s.head_dim * (s.mask == Mask::causal ? s.query_length + 1 : 2 * s.key_length) / 2;
}

struct Range {
  int64_t begin, count;  // rows
};
Range range_of(const View& offsets, int64_t length, int64_t b) {
  if (offsets.none()) return {b * length, length};
  return {offsets.i32()[b], offsets.i32()[b + 1] - offsets.i32()[b]};
}
void need_offsets(Op op, const View& offsets, int64_t batch, int64_t length, int64_t rows) {
  if (offsets.none()) return;
  const int32_t* at = offsets.i32();
  CHECK(at[0] == 0 && at[batch] == rows, "{}: offsets end at {} of {} rows", name_of(op), at[batch], rows);
  for (int64_t b = 0; b < batch; ++b)
    CHECK(at[b] <= at[b + 1] && at[b + 1] - at[b] <= length, "{}: example {} has rows [{}, {}), at most {} are allowed",
          name_of(op), b, at[b], at[b + 1], length);
}

bool is_causal(const AttentionShape& s, int64_t b) {
  return s.mask == Mask::causal || (s.mask == Mask::per_example && s.flags.u8()[b] != 0);
}

// Offsets that are there lead to every row of q and k, and to no other.
template <class Args>
void need_rows(const Args& a) {
  const AttentionShape& s = a.shape;
  const int64_t row = s.heads * s.head_dim;
  need_offsets(a.op, s.query_offsets, s.batch, s.query_length, a.q.count / row);
  need_offsets(a.op, s.key_offsets, s.batch, s.key_length, a.k.count / row);
}

// Runs `head(b, h, scratch)` for all heads. Heads of causal examples cost about half, so threads take the next one when
// they are ready; which thread computes a head does not matter to its bits.
template <class F>
void for_heads(const AttentionShape& s, Queue& queue, int64_t scratch_floats, const F& head) {
  int64_t items = s.batch * s.heads, work = items * s.query_length * s.key_length;
  int threads = threads_for(queue, work, items);
  int64_t stride = base::round_up(scratch_floats + 16, 16);
  float* scratch = static_cast<float*>(queue.scratch(size_t(stride * threads) * sizeof(float)));
  if (threads == 1) {
    for (int64_t i = 0; i < items; ++i) head(i / s.heads, i % s.heads, scratch);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t i = 0; i < items; ++i) head(i / s.heads, i % s.heads, scratch + omp_get_thread_num() * stride);
}

template <class T>
AttentionHead<T> head_of(const AttentionShape& s, int64_t b, int64_t h, int64_t queries, int64_t keys) {
  AttentionHead<T> a{};
  a.query_length = queries, a.key_length = keys, a.head_dim = s.head_dim;
  a.stride = s.heads * s.head_dim;
  a.causal = is_causal(s, b);
  a.dropout = s.dropout, a.key = s.stream.key();
  a.first_draw = uint64_t((s.first_example + b) * s.heads + h) * uint64_t(s.query_length * s.key_length);
  return a;
}

// Threads take heads in order, so the one after as many as there are threads is probably this thread's next.
template <class T>
void look_ahead(AttentionHead<T>& a, const AttentionShape& s, int64_t b, int64_t h, int threads) {
  const int64_t item = b * s.heads + h + threads, next = item / s.heads;
  if (next >= s.batch) return;
  auto rows = [&](const View& offsets, int64_t length) {
    return range_of(offsets, length, next).begin - range_of(offsets, length, b).begin;
  };
  const int64_t columns = (item % s.heads - h) * s.head_dim;
  a.next_queries = rows(s.query_offsets, s.query_length) * a.stride + columns;
  a.next_keys = rows(s.key_offsets, s.key_length) * a.stride + columns;
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

Cost cost(const AttentionForward& a) {  // two products
  return {4 * pairs(a.shape, a.q.count) * a.shape.head_dim, 2 * a.q.bytes() + 2 * a.k.bytes() + a.lse.bytes()};
}

void run_cpu(const AttentionForward& a, Queue& queue) {
  const AttentionShape& s = a.shape;
  const VectorTable& table = vector_table();
  float* lse = a.lse.none() ? nullptr : a.lse.f32();
  need_rows(a);
  table.with(a.q.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    int64_t floats = loops.attention_forward_scratch(s.query_length, s.key_length, s.head_dim);
    auto at = [](const View& view, int64_t offset) { return static_cast<T*>(view.data) + offset; };
    for_heads(s, queue, floats, [&](int64_t b, int64_t h, float* scratch) {
      Range queries = range_of(s.query_offsets, s.query_length, b), keys = range_of(s.key_offsets, s.key_length, b);
      AttentionHead<T> head = head_of<T>(s, b, h, queries.count, keys.count);
      int64_t query = queries.begin * head.stride + h * s.head_dim, key = keys.begin * head.stride + h * s.head_dim;
      head.q = at(a.q, query), head.k = at(a.k, key), head.v = at(a.v, key), head.o = at(a.o, query);
      head.lse = lse ? lse + (b * s.heads + h) * s.query_length : nullptr;
      look_ahead(head, s, b, h, queue.threads());
      loops.attention_forward(head, scratch);
    });
  });
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

Cost cost(const AttentionBackward& a) {  // four products; the scores, recomputed, are not useful work
  return {8 * pairs(a.shape, a.q.count) * a.shape.head_dim, 4 * a.q.bytes() + 4 * a.k.bytes() + a.lse.bytes()};
}

void run_cpu(const AttentionBackward& a, Queue& queue) {
  const AttentionShape& s = a.shape;
  const VectorTable& table = vector_table();
  need_rows(a);
  table.with(a.q.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    int64_t floats = loops.attention_backward_scratch(s.query_length, s.key_length, s.head_dim);
    auto at = [](const View& view, int64_t offset) { return static_cast<T*>(view.data) + offset; };
    for_heads(s, queue, floats, [&](int64_t b, int64_t h, float* scratch) {
      Range queries = range_of(s.query_offsets, s.query_length, b), keys = range_of(s.key_offsets, s.key_length, b);
      AttentionHead<T> head = head_of<T>(s, b, h, queries.count, keys.count);
      int64_t query = queries.begin * head.stride + h * s.head_dim, key = keys.begin * head.stride + h * s.head_dim;
      head.q = at(a.q, query), head.k = at(a.k, key), head.v = at(a.v, key), head.o = at(a.o, query);
      head.d_o = at(a.d_o, query), head.dq = at(a.dq, query), head.dk = at(a.dk, key), head.dv = at(a.dv, key);
      head.lse = a.lse.f32() + (b * s.heads + h) * s.query_length;
      look_ahead(head, s, b, h, queue.threads());
      loops.attention_backward(head, scratch);
    });
  });
}

}  // namespace kernels
