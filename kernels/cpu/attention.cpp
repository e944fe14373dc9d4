// SPDX-License-Identifier: Apache-2.0
// CPU implementation of attention: divides heads among threads. attention_head.hpp computes a head.
#include "kernels/attention.hpp"

#include "base/narrow.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

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
  CHECK(at[0] == 0 && at[batch] == rows, "{}: offsets end at {} of {} rows", name_of(op), at[batch],
        rows);
  for (int64_t b = 0; b < batch; ++b)
    CHECK(at[b] <= at[b + 1] && at[b + 1] - at[b] <= length,
          "{}: example {} has rows [{}, {}), at most {} are allowed", name_of(op), b, at[b],
          at[b + 1], length);
}

bool is_causal(const AttentionShape& s, int64_t b) {
  return s.mask == Mask::causal || (s.mask == Mask::per_example && s.flags.u8()[b] != 0);
}

// Refuses offsets that do not divide exactly the rows of q and of k.
template <class Args>
void need_rows(const Args& a) {
  const AttentionShape& s = a.shape;
  const int64_t row = s.heads * s.head_dim;
  need_offsets(a.op, s.query_offsets, s.batch, s.query_length, a.q.count / row);
  need_offsets(a.op, s.key_offsets, s.batch, s.key_length, a.k.count / row);
}

// Calls head(b, h, scratch) for all heads. Heads of causal examples cost about half as much, so
// each thread gets its next head when it is ready. The bits of a head do not depend on its thread.
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
  for (int64_t i = 0; i < items; ++i)
    head(i / s.heads, i % s.heads, scratch + omp_get_thread_num() * stride);
}

template <class T>
AttentionHead<T> head_of(const AttentionShape& s, int64_t b, int64_t h, int64_t queries,
                         int64_t keys) {
  AttentionHead<T> a{};
  a.query_length = queries;
  a.key_length = keys;
  a.head_dim = s.head_dim;
  a.stride = s.heads * s.head_dim;
  a.causal = is_causal(s, b);
  a.dropout = s.dropout;
  a.key = s.stream.key();
  a.first_draw =
      uint64_t((s.first_example + b) * s.heads + h) * uint64_t(s.query_length * s.key_length);
  return a;
}

// Sets the head to prefetch, by its distance. Threads get heads in order, so this thread's next
// head is probably as many heads ahead as there are threads.
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
      Range queries = range_of(s.query_offsets, s.query_length, b),
            keys = range_of(s.key_offsets, s.key_length, b);
      AttentionHead<T> head = head_of<T>(s, b, h, queries.count, keys.count);
      int64_t query = queries.begin * head.stride + h * s.head_dim,
              key = keys.begin * head.stride + h * s.head_dim;
      head.q = at(a.q, query);
      head.k = at(a.k, key);
      head.v = at(a.v, key);
      head.o = at(a.o, query);
      head.lse = lse ? lse + (b * s.heads + h) * s.query_length : nullptr;
      look_ahead(head, s, b, h, queue.threads());
      loops.attention_forward(head, scratch);
    });
  });
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
      Range queries = range_of(s.query_offsets, s.query_length, b),
            keys = range_of(s.key_offsets, s.key_length, b);
      AttentionHead<T> head = head_of<T>(s, b, h, queries.count, keys.count);
      int64_t query = queries.begin * head.stride + h * s.head_dim,
              key = keys.begin * head.stride + h * s.head_dim;
      head.q = at(a.q, query);
      head.k = at(a.k, key);
      head.v = at(a.v, key);
      head.o = at(a.o, query);
      head.d_o = at(a.d_o, query);
      head.dq = at(a.dq, query);
      head.dk = at(a.dk, key);
      head.dv = at(a.dv, key);
      head.lse = a.lse.f32() + (b * s.heads + h) * s.query_length;
      look_ahead(head, s, b, h, queue.threads());
      loops.attention_backward(head, scratch);
    });
  });
}

}  // namespace kernels
