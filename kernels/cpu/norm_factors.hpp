// SPDX-License-Identifier: Apache-2.0
// What batch norm and group norm share on CPUs: numbers per column for the loops over rows
// (batch_norm_rows.hpp), cuts of rows among threads, and stores past the caches.
#pragma once

#include <algorithm>

#include "base/fused.hpp"
#include "base/narrow.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {

// Numbers per column begin on whole vectors and have whole vectors.
inline int64_t padded_columns(int64_t columns) { return base::round_up(columns, 16); }

// Parts of a queue's scratch.
class NormRoom {
 public:
  NormRoom(Queue& queue, int64_t bytes)
      : at_(static_cast<char*>(queue.scratch(size_t(bytes)))), bytes_(bytes) {}
  template <class T>
  T* take(int64_t count) {
    CHECK((bytes_ -= count * int64_t(sizeof(T))) >= 0);
    T* p = reinterpret_cast<T*>(at_);
    at_ += count * int64_t(sizeof(T));
    return p;
  }
  // Returns zeros.
  float* table(int64_t count) {
    float* p = take<float>(count);
    std::fill(p, p + count, 0.0f);
    return p;
  }

 private:
  char* at_;
  int64_t bytes_;
};

inline float scale_of(const BatchNormValues& v, int64_t j) {
  return v.scale.none() ? 1 : v.scale.f32()[j];
}

// norm(x) = x * factor + shift. Every op forms these numbers alike, so that backward finds the
// zeros of the ReLU that forward had.
struct NormFactors {
  float *factor, *shift;  // [groups, stride]
  int64_t stride;

  NormFactors(const BatchNormValues& v, int64_t groups, int64_t columns, NormRoom& room,
              const Queue& queue)
      : factor(room.table(groups * padded_columns(columns))),
        shift(room.table(groups * padded_columns(columns))),
        stride(padded_columns(columns)) {
    for_ranges(queue, groups, groups * columns, 1, [&](int64_t g, int64_t end) {
      for (; g < end; ++g)
        for (int64_t j = 0; j < columns; ++j) {
          const float f = v.rstd.f32()[g * columns + j] * scale_of(v, j);
          factor[g * stride + j] = f;
          shift[g * stride + j] = base::fused(-v.mean.f32()[g * columns + j], f,
                                              v.bias.none() ? 0.0f : v.bias.f32()[j]);
        }
    });
  }
};

// Calls f(group, begin, end) for rows [begin, end) of all groups' rows, within one group each.
template <class F>
void for_group_rows(const Queue& queue, int64_t groups, int64_t rows, int64_t columns, const F& f) {
  for_ranges(queue, groups * rows, groups * rows * columns, 1, [&](int64_t r, int64_t end) {
    while (r < end) {
      const int64_t g = r / rows, last = std::min(end, (g + 1) * rows);
      f(g, r, last);
      r = last;
    }
  });
}

// Before a store, processors read the line of memory that it changes, unless whole lines are stored
// past the caches. That pays for results that are larger than the caches.
constexpr int64_t kLargeResult = int64_t{8} << 20;  // bytes

inline bool streams_past_caches(const View& y, int64_t columns) {
  constexpr int64_t kLine = 64;
  return y.bytes() >= kLargeResult && reinterpret_cast<uintptr_t>(y.data) % kLine == 0 &&
         columns * device::size_of(y.type) % kLine == 0;
}

}  // namespace kernels
