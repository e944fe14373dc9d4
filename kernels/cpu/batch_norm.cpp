// SPDX-License-Identifier: Apache-2.0
// CPU implementation of batch normalisation. batch_norm_loops.hpp computes its rows, from numbers
// per column that are made here.
#include "kernels/batch_norm.hpp"

#include <algorithm>
#include <cmath>

#include "base/fused.hpp"
#include "kernels/cpu/norm_factors.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

// Computes sums [parts, 2, columns]. sum(part, first row, rows, first, second) adds rows of a block
// to sums of whole vectors. The sums of blocks are added in order.
template <class Sum>
void sum_blocks(const View& out, int64_t parts, int64_t rows, int64_t columns, double* partial,
                Queue& queue, const Sum& sum) {
  const RowBlocks blocks(rows);
  const int64_t count = blocks.count(), stride = padded_columns(columns);
  for_ranges(queue, parts * count, parts * rows * columns, 1, [&](int64_t b, int64_t end) {
    for (; b < end; ++b) {
      double* first = partial + b * 2 * stride;
      std::fill(first, first + 2 * stride, 0.0);
      const int64_t begin = blocks.begin(b % count);
      sum(b / count, b / count * rows + begin, blocks.end(b % count) - begin, first,
          first + stride);
    }
  });
  for_ranges(queue, 2 * parts, 2 * parts * count * columns, 1, [&](int64_t s, int64_t end) {
    for (; s < end; ++s) {
      double* total = out.f64() + s * columns;
      std::fill(total, total + columns, 0.0);
      for (int64_t b = 0; b < count; ++b) {
        const double* of_block = partial + ((s / 2 * count + b) * 2 + s % 2) * stride;
        for (int64_t j = 0; j < columns; ++j) total[j] += of_block[j];
      }
    }
  });
}

int64_t doubles_of_blocks(int64_t parts, int64_t rows, int64_t columns) {
  return parts * RowBlocks(rows).count() * 2 * padded_columns(columns);
}

}  // namespace

void run_cpu(const BatchNormSums& a, Queue& queue) {
  const int64_t count = doubles_of_blocks(a.parts, a.rows, a.columns);
  double* partial = NormRoom(queue, count * 8).take<double>(count);
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    const auto* x = static_cast<const decltype(element)*>(a.x.data);
    sum_blocks(a.sums, a.parts, a.rows, a.columns, partial, queue,
               [&](int64_t, int64_t row, int64_t rows, double* first, double* second) {
                 loops.batch_norm_sums({.x = x + row * a.columns,
                                        .first = first,
                                        .second = second,
                                        .rows = rows,
                                        .columns = a.columns});
               });
  });
}

void run_cpu(const BatchNormStatistics& a, Queue&) {
  const int64_t n = a.columns;
  if (a.sums.none()) {
    for (int64_t j = 0; j < n; ++j) {
      a.mean.f32()[j] = a.running_mean.f32()[j];
      a.rstd.f32()[j] = float(1 / std::sqrt(double(a.running_variance.f32()[j]) + double(a.eps)));
    }
    return;
  }
  if (!a.moments.none()) std::fill(a.moments.f64(), a.moments.f64() + a.moments.count, 0.0);
  const double count = double(a.count);
  for (int64_t g = 0; g < a.groups; ++g)
    for (int64_t j = 0; j < n; ++j) {
      const double mean = a.sums.f64()[2 * g * n + j] / count;
      const double variance =
          std::max(0.0, base::fused(-mean, mean, a.sums.f64()[(2 * g + 1) * n + j] / count));
      a.mean.f32()[g * n + j] = float(mean);
      a.rstd.f32()[g * n + j] = float(1 / std::sqrt(variance + double(a.eps)));
      if (a.moments.none()) continue;
      double* moments = a.moments.f64() + 2 * (g / (a.groups / a.parts)) * n;
      moments[j] += mean;
      moments[n + j] = base::fused(variance, count / (count - 1), moments[n + j]);
    }
}

void run_cpu(const BatchNormRunning& a, Queue&) {
  for (int64_t j = 0; j < a.columns; ++j) {
    float &mean = a.mean.f32()[j], &variance = a.variance.f32()[j];
    mean = float(base::fused(a.weight, a.moments.f64()[j], a.decay * double(mean)));
    variance =
        float(base::fused(a.decay, double(variance), a.weight * a.moments.f64()[a.columns + j]));
  }
  if (!a.batches.none()) a.batches.f32()[0] += 1;
}

void run_cpu(const BatchNormForward& a, Queue& queue) {
  const int64_t n = a.columns;
  const bool two = !a.shortcut_norm.mean.none();
  NormRoom room(queue, (two ? 4 : 2) * a.groups * padded_columns(n) * 4);
  const NormFactors own(a.norm, a.groups, n, room, queue);
  const NormFactors other =
      two ? NormFactors(a.shortcut_norm, a.groups, n, room, queue) : NormFactors(own);
  const bool streams = streams_past_caches(a.y, n) && a.y.data != a.x.data;
  vector_table().with(a.y.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    for_group_rows(queue, a.groups, a.rows, n, [&](int64_t g, int64_t begin, int64_t end) {
      const int64_t at = begin * n, table = g * own.stride;
      loops.batch_norm_forward(
          {.y = static_cast<T*>(a.y.data) + at,
           .x = static_cast<const T*>(a.x.data) + at,
           .shortcut = a.shortcut.none() ? nullptr : static_cast<const T*>(a.shortcut.data) + at,
           .factor = own.factor + table,
           .shift = own.shift + table,
           .shortcut_factor = two ? other.factor + table : nullptr,
           .shortcut_shift = two ? other.shift + table : nullptr,
           .rows = end - begin,
           .columns = n,
           .relu = a.relu,
           .streams = streams});
    });
  });
}

void run_cpu(const BatchNormBackwardSums& a, Queue& queue) {
  const int64_t n = a.columns, stride = padded_columns(n),
                count = doubles_of_blocks(a.parts, a.rows, n);
  NormRoom room(queue, count * 8 + 3 * a.groups * stride * 4);
  double* partial = room.take<double>(count);
  const NormFactors factors(a.norm, a.groups, n, room, queue);
  float* mean = room.table(a.groups * stride);
  for (int64_t g = 0; g < a.groups; ++g)
    std::copy_n(a.norm.mean.f32() + g * n, n, mean + g * stride);
  vector_table().with(a.dy.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    auto at = [&](const View& v, int64_t row) {
      return v.none() ? nullptr : static_cast<T*>(v.data) + row * n;
    };
    sum_blocks(a.sums, a.parts, a.rows, n, partial, queue,
               [&](int64_t part, int64_t row, int64_t rows, double* first, double* second) {
                 const int64_t table = part / (a.parts / a.groups) * stride;
                 loops.batch_norm_gradient_sums({.g = at(a.g, row),
                                                 .dy = at(a.dy, row),
                                                 .add = at(a.add, row),
                                                 .y = at(a.y, row),
                                                 .x = at(a.x, row),
                                                 .mean = mean + table,
                                                 .factor = factors.factor + table,
                                                 .shift = factors.shift + table,
                                                 .first = first,
                                                 .second = second,
                                                 .rows = rows,
                                                 .columns = n,
                                                 .relu = a.relu});
               });
  });
  for (int64_t part = 0; part < a.parts; ++part)
    for (int64_t j = 0; j < n; ++j)
      a.sums.f64()[(2 * part + 1) * n + j] *=
          double(a.norm.rstd.f32()[part / (a.parts / a.groups) * n + j]);
}

void run_cpu(const BatchNormBackward& a, Queue& queue) {
  const int64_t n = a.columns, stride = padded_columns(n);
  NormRoom room(queue, 4 * a.groups * stride * 4);
  const NormFactors factors(a.norm, a.groups, n, room, queue);
  float *slope = room.table(a.groups * stride), *offset = room.table(a.groups * stride);
  for (int64_t g = 0; !a.sums.none() && g < a.groups; ++g)
    for (int64_t j = 0; j < n; ++j) {
      const double of_g = a.sums.f64()[2 * g * n + j] / double(a.count),
                   of_gz = a.sums.f64()[(2 * g + 1) * n + j] / double(a.count);
      const double factor = double(factors.factor[g * stride + j]),
                   steep = double(a.norm.rstd.f32()[g * n + j]) * of_gz;
      slope[g * stride + j] = float(-factor * steep);
      offset[g * stride + j] =
          float(factor * base::fused(double(a.norm.mean.f32()[g * n + j]), steep, -of_g));
    }
  const bool streams = streams_past_caches(a.dx, n) && a.dx.data != a.dy.data;
  vector_table().with(a.dx.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    for_group_rows(queue, a.groups, a.rows, n, [&](int64_t g, int64_t begin, int64_t end) {
      const int64_t at = begin * n, table = g * stride;
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

// Adds part after part, so that memory is read in order. A sum has the same order either way.
void run_cpu(const BatchNormGradients& a, Queue& queue) {
  const int64_t n = a.columns;
  double* sum = static_cast<double*>(queue.scratch(size_t(n) * sizeof(double)));
  auto add = [&](const View& out, int64_t which, Write write) {
    if (out.none()) return;
    std::fill(sum, sum + n, 0.0);
    for (int64_t p = 0; p < a.parts; ++p) {
      const double* of_part = a.sums.f64() + (2 * p + which) * n;
      for (int64_t j = 0; j < n; ++j) sum[j] += of_part[j];
    }
    for (int64_t j = 0; j < n; ++j)
      out.f32()[j] = (write == Write::accumulate ? out.f32()[j] : 0.0f) + float(sum[j]);
  };
  add(a.dbias, 0, a.bias_write);
  add(a.dscale, 1, a.scale_write);
}

}  // namespace kernels
