// SPDX-License-Identifier: Apache-2.0
// CPU implementation of group normalisation. The loops over pixels are those of batch norm
// (batch_norm_loops.hpp), with numbers per image and channel that are made here.
#include "kernels/group_norm.hpp"

#include <algorithm>
#include <cmath>

#include "base/fused.hpp"
#include "kernels/cpu/norm_factors.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

// Calls f(image, first column) for the groups of all images, in parts for threads.
template <class Args, class F>
void for_channel_groups(const Args& a, const Queue& queue, const F& f) {
  for_ranges(queue, a.images, a.sums.count, 1, [&](int64_t image, int64_t end) {
    for (; image < end; ++image)
      for (int64_t j = 0; j < a.columns; j += a.columns / a.groups) f(image, j);
  });
}

}  // namespace

void run_cpu(const GroupNormStatistics& a, Queue& queue) {
  const int64_t n = a.columns, of_group = n / a.groups;
  const double count = double(a.rows * of_group);
  for_channel_groups(a, queue, [&](int64_t image, int64_t first) {
    const double *x = a.sums.f64() + 2 * image * n + first, *squares = x + n;
    double sum = 0, square_sum = 0;
    for (int64_t j = 0; j < of_group; ++j) {
      sum += x[j];
      square_sum += squares[j];
    }
    const double mean = sum / count,
                 variance = std::max(0.0, base::fused(-mean, mean, square_sum / count));
    std::fill_n(a.mean.f32() + image * n + first, of_group, float(mean));
    std::fill_n(a.rstd.f32() + image * n + first, of_group,
                float(1 / std::sqrt(variance + double(a.eps))));
  });
}

void run_cpu(const GroupNormBackward& a, Queue& queue) {
  const int64_t n = a.columns, of_group = n / a.groups, stride = padded_columns(n);
  NormRoom room(queue, 4 * a.images * stride * 4);
  const NormFactors factors(a.norm, a.images, n, room, queue);
  float *slope = room.table(a.images * stride), *offset = room.table(a.images * stride);
  const double count = double(a.rows * of_group);
  for_channel_groups(a, queue, [&](int64_t image, int64_t first) {
    const double *of_g = a.sums.f64() + 2 * image * n + first, *of_gz = of_g + n;
    double mean_g = 0, mean_gz = 0;  // of g * scale and of g * scale * z
    for (int64_t j = 0; j < of_group; ++j) {
      mean_g = base::fused(double(scale_of(a.norm, first + j)), of_g[j], mean_g);
      mean_gz = base::fused(double(scale_of(a.norm, first + j)), of_gz[j], mean_gz);
    }
    mean_g /= count;
    mean_gz /= count;
    const double rstd = double(a.norm.rstd.f32()[image * n + first]),
                 mean = double(a.norm.mean.f32()[image * n + first]), steep = rstd * mean_gz;
    const int64_t at = image * stride + first;
    std::fill_n(slope + at, of_group, float(-rstd * steep));
    std::fill_n(offset + at, of_group, float(rstd * base::fused(mean, steep, -mean_g)));
  });
  const bool streams = streams_past_caches(a.dx, n) && a.dx.data != a.dy.data;
  vector_table().with(a.dx.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    for_group_rows(queue, a.images, a.rows, n, [&](int64_t image, int64_t begin, int64_t end) {
      const int64_t at = begin * n, table = image * stride;
      loops.batch_norm_backward({.dx = static_cast<T*>(a.dx.data) + at,
                                 .dy = static_cast<const T*>(a.dy.data) + at,
                                 .x = static_cast<const T*>(a.x.data) + at,
                                 .factor = factors.factor + table,
                                 .shift = factors.shift + table,
                                 .slope = slope + table,
                                 .offset = offset + table,
                                 .rows = end - begin,
                                 .columns = n,
                                 .relu = a.relu,
                                 .streams = streams});
    });
  });
}

}  // namespace kernels
