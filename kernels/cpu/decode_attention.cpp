// SPDX-License-Identifier: Apache-2.0
// CPU implementation of attention over a cache: divides heads of queries among threads.
#include "kernels/decode_attention.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

// Returns the number of keys of a row whose index is given.
int64_t keys_of(const int32_t* index, int64_t keys) {
  while (keys > 1 && index[keys - 1] < 0) --keys;
  return keys;
}

}  // namespace

void run_cpu(const DecodeAttention& a, Queue& queue) {
  if (a.rows == 0) return;
  const int32_t *index = a.index.none() ? nullptr : a.index.i32(),
                *first = a.first.none() ? nullptr : a.first.i32();
  for (int64_t r = 0; index && r < a.rows; ++r)
    for (int64_t j = 0, n = keys_of(index + r * a.keys, a.keys); j < n; ++j)
      need_id(a.op, index[r * a.keys + j], r, 0, a.cache_rows);
  if (first) need_ids(a.op, first, a.rows, 0, a.cache_rows - a.keys + 1);
  const int64_t width = a.heads * a.head_dim, items = a.rows * a.heads,
                floats = base::round_up(a.keys, 16) + base::round_up(a.head_dim, 16);
  // Each thread has one range of items, and with it one part of the scratch.
  const int64_t threads = threads_for(queue, items * a.keys * a.head_dim, items),
                share = base::ceil_div(items, threads);
  float* scratch = static_cast<float*>(queue.scratch(size_t(floats * threads) * sizeof(float)));
  vector_table().with(a.q.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    auto at = [](const View& v, int64_t i) { return static_cast<T*>(v.data) + i; };
    auto run_share = [&](int64_t t) {
      for (int64_t i = t * share; i < std::min(items, (t + 1) * share); ++i) {
        const int64_t r = i / a.heads, head = i % a.heads * a.head_dim;
        int64_t ahead = a.head_dim;  // the next head, or the first one of the next row
        if (head + a.head_dim == width)
          ahead = first && r + 1 < a.rows ? (first[r + 1] - first[r]) * width - head : 0;
        const DecodeHead<T> one{.o = at(a.o, r * width + head),
                                .q = at(a.q, r * width + head),
                                .k = at(a.k, head),
                                .v = at(a.v, head),
                                .index = index ? index + r * a.keys : nullptr,
                                .first = first ? first[r] : 0,
                                .keys = index ? keys_of(index + r * a.keys, a.keys) : a.keys,
                                .head_dim = a.head_dim,
                                .stride = width,
                                .ahead = ahead};
        loops.decode_attention(one, scratch + t * floats);
      }
    };
    if (threads == 1) return run_share(0);
#pragma omp parallel for num_threads(int(threads)) schedule(static)
    for (int64_t t = 0; t < threads; ++t) run_share(t);
  });
}

}  // namespace kernels
