// SPDX-License-Identifier: Apache-2.0
// CPU implementations of the small memory-bound ops.
#include "kernels/elementwise.hpp"

#include <cstring>

#include "base/fused.hpp"
#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

void run_cpu(const Add& args, Queue& queue) {
  float *y = args.y.f32(), *a = args.a.f32(), *b = args.b.f32();
  for_ranges(queue, args.y.count, args.y.count, 64, [&](int64_t begin, int64_t end) {
    const float scale = args.scale;  // a copy that no store to y can change
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) y[i] = base::fused(scale, b[i], a[i]);
  });
}

void run_cpu(const AddTable& a, Queue& queue) {
  float *y = a.y.f32(), *x = a.x.f32(), *table = a.table.f32();
  for_ranges(queue, a.rows, a.rows * a.width, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      float* out = y + r * a.width;
      const float *in = x + r * a.width, *row = table + r % a.length * a.width;
#pragma omp simd
      for (int64_t j = 0; j < a.width; ++j) out[j] = in[j] + row[j];
    }
  });
}

void run_cpu(const Copy& a, Queue& queue) {
  char *y = static_cast<char*>(a.y.data), *x = static_cast<char*>(a.x.data);
  if (x == y) return;
  for_ranges(queue, a.x.bytes(), a.x.bytes() / 4, 4096,
             [&](int64_t i, int64_t end) { std::memcpy(y + i, x + i, size_t(end - i)); });
}

void run_cpu(const Fill& a, Queue& queue) {
  float* y = a.y.f32();
  for_ranges(queue, a.y.count, a.y.count, 1024,
             [&](int64_t i, int64_t end) { std::fill(y + i, y + end, a.value); });
}

void run_cpu(const GatherRows& a, Queue& queue) {
  const int32_t* index = a.index.i32();
  need_ids(a.op, index, a.rows, INT32_MIN, a.source_rows);
  char *y = static_cast<char*>(a.y.data), *x = static_cast<char*>(a.x.data);
  int64_t row = a.width * device::size_of(a.x.type);
  for_ranges(queue, a.rows, a.rows * a.width, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r)
      if (index[r] >= 0)
        std::memcpy(y + r * row, x + index[r] * row, size_t(row));
      else
        std::memset(y + r * row, 0, size_t(row));
  });
}

void run_cpu(const ScatterRows& a, Queue& queue) {
  const int32_t* index = a.index.i32();
  need_ids(a.op, index, a.rows, INT32_MIN, a.target_rows);
  float *y = a.y.f32(), *x = a.x.f32();
  for_ranges(queue, a.rows, a.rows * a.width, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r)
      if (index[r] >= 0) {
        float* __restrict out = y + index[r] * a.width;
        const float* in = x + r * a.width;
        if (a.write == Write::overwrite)
          std::memcpy(out, in, size_t(a.width) * sizeof(float));
        else
          for (int64_t j = 0; j < a.width; ++j) out[j] += in[j];
      }
  });
}

void run_cpu(const Dropout& a, Queue& queue) {
  if (a.rate == 0) return run_cpu(Copy{a.y, a.x}, queue);  // keeps every bit
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    auto *y = static_cast<decltype(element)*>(a.y.data),
         *x = static_cast<decltype(element)*>(a.x.data);
    for_ranges(queue, a.x.count, a.x.count, 256, [&](int64_t i, int64_t end) {
      loops.dropout({.y = y + i,
                     .x = x + i,
                     .count = end - i,
                     .first = uint64_t(a.first + i),
                     .key = a.stream.key(),
                     .rate = a.rate});
    });
  });
}

}  // namespace kernels
