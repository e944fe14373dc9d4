// SPDX-License-Identifier: Apache-2.0
// CPU implementation of attention: divides heads among threads. attention_head.hpp computes a head.
#include "kernels/attention.hpp"

#include <utility>

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
  const int64_t row = s.row();
  CHECK(s.next_query() == row && s.next_key() == row, "{}: only GPUs take rows with gaps",
        name_of(a.op));
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

// A head's first element in tensors with the rows of q, and in tensors with the rows of k.
struct HeadBegin {
  int64_t query, key;
};

template <class T>
T* at(const View& view, int64_t element) {
  return static_cast<T*>(view.data) + element;
}

// Returns one head of one example with the operands that both passes have.
template <class T, class Args>
std::pair<AttentionHead<T>, HeadBegin> head_of(const Args& a, int64_t b, int64_t h) {
  const AttentionShape& s = a.shape;
  const Range queries = range_of(s.query_offsets, s.query_length, b),
              keys = range_of(s.key_offsets, s.key_length, b);
  AttentionHead<T> head{};
  head.query_length = queries.count;
  head.key_length = keys.count;
  head.head_dim = s.head_dim;
  head.stride = s.heads * s.head_dim;
  head.causal = is_causal(s, b);
  head.dropout = s.dropout;
  head.key = s.stream.key();
  head.first_draw =
      uint64_t((s.first_example + b) * s.heads + h) * uint64_t(s.query_length * s.key_length);
  const HeadBegin begin = {queries.begin * head.stride + h * s.head_dim,
                           keys.begin * head.stride + h * s.head_dim};
  head.q = at<T>(a.q, begin.query);
  head.k = at<T>(a.k, begin.key);
  head.v = at<T>(a.v, begin.key);
  head.o = at<T>(a.o, begin.query);
  return {head, begin};
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
    for_heads(s, queue, floats, [&](int64_t b, int64_t h, float* scratch) {
      AttentionHead<T> head = head_of<T>(a, b, h).first;
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
    for_heads(s, queue, floats, [&](int64_t b, int64_t h, float* scratch) {
      auto [head, begin] = head_of<T>(a, b, h);
      head.d_o = at<T>(a.d_o, begin.query);
      head.dq = at<T>(a.dq, begin.query);
      head.dk = at<T>(a.dk, begin.key);
      head.dv = at<T>(a.dv, begin.key);
      head.lse = a.lse.f32() + (b * s.heads + h) * s.query_length;
      look_ahead(head, s, b, h, queue.threads());
      loops.attention_backward(head, scratch);
    });
  });
}

}  // namespace kernels
