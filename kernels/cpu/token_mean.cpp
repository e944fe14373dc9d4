// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the mean over tokens and its gradient.
#include "kernels/token_mean.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/bf16_value.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

template <class T>
void add_rows(const T* x, int64_t rows, int64_t width, float* __restrict sum) {
  std::fill(sum, sum + width, 0.0f);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; ++j) sum[j] += loops::to_float(x[r * width + j]);
  for (int64_t j = 0; j < width; ++j) sum[j] /= float(rows);
}

}  // namespace

void run_cpu(const TokenMeanForward& a, Queue& queue) {
  const int64_t size = a.rows * a.width;
  for_ranges(queue, a.batch, a.x.count, 1, [&](int64_t b, int64_t end) {
    for (; b < end; ++b) {
      float* y = a.y.f32() + b * a.width;
      if (a.x.type == DType::bf16)
        add_rows(reinterpret_cast<const loops::Bf16*>(a.x.bf16()) + b * size, a.rows, a.width, y);
      else
        add_rows(a.x.f32() + b * size, a.rows, a.width, y);
    }
  });
}

void run_cpu(const TokenMeanBackward& a, Queue& queue) {
  for_ranges(queue, a.batch, a.dx.count, 1, [&](int64_t b, int64_t end) {
    for (; b < end; ++b) {
      const float* dy = a.dy.f32() + b * a.width;
      float* first = a.dx.f32() + b * a.rows * a.width;
      for (int64_t j = 0; j < a.width; ++j) first[j] = dy[j] / float(a.rows);
      for (int64_t r = 1; r < a.rows; ++r)
        std::memcpy(first + r * a.width, first, size_t(a.width) * sizeof(float));
    }
  });
}

}  // namespace kernels
