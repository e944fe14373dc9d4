// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the loss of Barlow Twins. Each row has its sums, which are added in order.
#include "kernels/barlow_terms.hpp"

#include <algorithm>

#include "kernels/cpu/parallel.hpp"
#include "kernels/instruction_choice.hpp"

namespace kernels {

void run_cpu(const BarlowTerms& a, Queue& queue) {
  auto* sums = static_cast<double*>(queue.scratch(size_t(2 * a.width) * sizeof(double)));
  const double factor = double(a.factor), off_factor = factor * double(a.lambda);
  const double scale =
      2 / a.examples * double(a.scale) * (a.loss_scale.none() ? 1 : double(*a.loss_scale.f32()));
  for_ranges(queue, a.width, a.products.count, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      float* row = a.products.f32() + i * a.width;
      const double diagonal = double(row[i]) / a.examples - 1;
      double sum = 0, in_order = 0;
      if (bits_are_portable())  // the compiler chooses the lanes of the other sum
        for (int64_t j = 0; j < a.width; ++j) {
          const double c = double(row[j]) / a.examples;
          in_order += j == i ? 0 : c * c;
        }
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < a.width; ++j) {
        const double c = double(row[j]) / a.examples;
        sum += j == i ? 0 : c * c;
        row[j] = float(scale * off_factor * c);
      }
      row[i] = float(scale * factor * diagonal);
      sums[2 * i] = diagonal * diagonal;
      sums[2 * i + 1] = bits_are_portable() ? in_order : sum;
    }
  });
  double diagonal = 0, off = 0;
  for (int64_t i = 0; i < a.width; ++i) {
    diagonal += sums[2 * i];
    off += sums[2 * i + 1];
  }
  diagonal *= factor;
  off *= off_factor;
  std::fill_n(a.loss.f32(), a.loss.count, float(diagonal + off));
  std::fill_n(a.diagonal.f32(), a.diagonal.count, float(diagonal));
  std::fill_n(a.off.f32(), a.off.count, float(off));
}

}  // namespace kernels
