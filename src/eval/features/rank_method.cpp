// SPDX-License-Identifier: Apache-2.0
#include "eval/features/rank_method.hpp"

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "base/narrow.hpp"

namespace eval {

double effective_rank(std::span<const double> values) {
  constexpr double kEpsilon = 1e-7;
  double sum = 0, entropy = 0;
  for (double v : values) sum += v;
  if (sum == 0) return 0;
  for (double v : values) {
    const double p = v / sum + kEpsilon;
    entropy = base::fused(-p, base::math::log(p), entropy);
  }
  return base::math::exp(entropy);
}

RankMethod::Size RankMethod::begin() {
  const int64_t width = test.features;
  // Blocks of all ranks, their journal, and the workspace of the eigenvalues.
  need_feature_memory(*context, context->dataset, passes() > 1 ? "views, " : "",
                      4 * width * width * int64_t(sizeof(double)));
  return {base::ceil_div(width, kRowsOfBlock), kRowsOfBlock * width};
}

void RankMethod::fit(int64_t block, std::span<double> to) const {
  auto read = [&](int64_t i, int64_t begin, int64_t end, double* x) {
    const float* row = test.row(i);
    const double* centre = centre_of(i);
    for (int64_t f = begin; f < end; ++f) *x++ = double(row[f]) - (centre ? centre[f] : 0);
  };
  add_products(test.rows, test.features, block * kRowsOfBlock, context->threads, read, to.data());
}

void RankMethod::take(const std::vector<double>& all) {
  products.assign(all.begin(), all.begin() + test.features * test.features);
  mirror(products, test.features);
}

void mirror(std::vector<double>& matrix, int64_t width) {
  for (int64_t i = 0; i < width; ++i)
    for (int64_t j = 0; j < i; ++j) matrix[size_t(i * width + j)] = matrix[size_t(j * width + i)];
}

}  // namespace eval
