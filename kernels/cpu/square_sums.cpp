// SPDX-License-Identifier: Apache-2.0
// CPU implementation of sums of squares and of their addition.
#include "kernels/square_sums.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/cpu/square_sum_loop.hpp"

namespace kernels {
namespace {
constexpr int64_t kBlock = 16384;  // elements per partial sum
}

void run_cpu(const SquareSums& a, Queue& queue) {
  const float* x = a.x.f32();
  const int64_t n = a.x.count, blocks = base::ceil_div(n, kBlock);
  auto* partial = static_cast<double*>(queue.scratch(size_t(blocks) * sizeof(double)));
#pragma omp parallel for schedule(static) num_threads(queue.threads()) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b)
    partial[b] = loops::square_sum(x + b * kBlock, std::min(kBlock, n - b * kBlock));
  *a.sum.f64() = loops::plain_sum(partial, blocks);
}

void run_cpu(const AddSums& args, Queue& queue) {
  double* y = args.y.f64();
  const double* a = args.a.none() ? nullptr : args.a.f64();
  const double* b = args.b.none() ? nullptr : args.b.f64();
  if (!a) std::swap(a, b);
  const int64_t n = args.y.count;
#pragma omp parallel for simd schedule(static) num_threads(queue.threads()) if (n > kBlock)
  for (int64_t i = 0; i < n; ++i) y[i] = (a ? a[i] : 0.0) + (b ? b[i] : 0.0);
}

}  // namespace kernels
