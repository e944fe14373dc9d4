// SPDX-License-Identifier: Apache-2.0
#include "shard/initialise.hpp"

#include <algorithm>
#include <cmath>

#include "base/fused.hpp"

namespace shard {
namespace {

// Draws a standard normal truncated to (-2, 2), by rejection over successive draws of the element's
// own stream. Its standard deviation is 0.87962566103423978.
double truncated_normal(base::Stream element) {
  for (uint64_t i = 0;; ++i) {
    double x = element.normal(i);
    if (std::abs(x) < 2) return x;
  }
}

// Sets out to the elements [begin, end) of a matrix with rows of `width` values, each divided by
// the length of its row.
template <class Value>
void unit_rows(int64_t begin, int64_t end, int64_t width, float* out, int threads,
               const Value& value) {
  const int64_t first = begin / width, last = (end + width - 1) / width;
#pragma omp parallel for num_threads(threads) schedule(static) if (end - begin > 10000)
  for (int64_t row = first; row < last; ++row) {
    double square = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i)
      square = base::fused(value(uint64_t(i)), value(uint64_t(i)), square);
    const double length = std::max(std::sqrt(square), 1e-12);
    for (int64_t i = std::max(begin, row * width); i < std::min(end, (row + 1) * width); ++i)
      out[i - begin] = float(value(uint64_t(i)) / length);
  }
}

}  // namespace

void initial_values(const Parameter& parameter, uint64_t seed, int64_t begin, int64_t end,
                    float* out, int threads) {
  base::Stream stream(seed, "init/" + parameter.path);
  const Init& init = parameter.init;
  auto each = [&](auto value) {
    if (init.unit_rows) return unit_rows(begin, end, parameter.shape.back(), out, threads, value);
#pragma omp parallel for num_threads(threads) schedule(static) if (end - begin > 10000)
    for (int64_t i = begin; i < end; ++i) out[i - begin] = float(value(uint64_t(i)));
  };
  switch (init.kind) {
    case Init::Kind::zeros:
      return each([](uint64_t) { return 0.0; });
    case Init::Kind::ones:
      return each([](uint64_t) { return 1.0; });
    case Init::Kind::constant:
      return each([&](uint64_t) { return init.value; });
    case Init::Kind::normal:
      return each([&](uint64_t i) { return init.std * stream.normal(i); });
    case Init::Kind::lecun_normal: {
      double scale = init.scale * std::sqrt(1.0 / double(init.fan_in)) / 0.87962566103423978;
      return each([&](uint64_t i) { return scale * truncated_normal(stream.sub(i)); });
    }
    case Init::Kind::xavier_uniform: {
      double limit = init.scale * std::sqrt(6.0 / double(init.fan_in + init.fan_out));
      return each([&](uint64_t i) { return limit * (2 * stream.uniform64(i) - 1); });
    }
    case Init::Kind::uniform:
      return each([&](uint64_t i) { return init.value * (2 * stream.uniform64(i) - 1); });
  }
}

}  // namespace shard
