// SPDX-License-Identifier: Apache-2.0
// Methods that measure how many dimensions the features of one set use, by products of features.
#pragma once

#include <algorithm>

#include "eval/features/feature_evaluator.hpp"
#include "eval/fits/dense.hpp"

namespace eval {

// Returns exp(-sum of p log p) with p = value / (sum of the values) + 1e-7: the number of equal
// values that would have this entropy (arXiv 2210.02885, 3). The values are at least 0. Returns 0
// if all are 0.
double effective_rank(std::span<const double> values);

struct RankMethod : FeatureMethod {
  Features fields(const models::Model& model) const override {
    return {{"image", model.single_image()}};
  }

 protected:
  int64_t answers() const override { return 0; }
  void answer(const data::Dataset&, const models::HostBatch&, int64_t,
              std::span<float>) const override {}
  // Returns the vector to subtract from a row of the table before the products: [features]; null:
  // none.
  virtual const double* centre_of(int64_t /*row*/) const { return nullptr; }
  // Ranks fit blocks of rows of `products`.
  Size begin() override;
  void fit(int64_t block, std::span<double> to) const override;
  void take(const std::vector<double>& all) override;

  std::vector<double> products;  // [features, features]: the sum of x x' over rows x of the table
};

// Rows of a symmetric matrix [width, width] that are computed together.
constexpr int64_t kRowsOfBlock = 32;
// Writes the rows [first, first + kRowsOfBlock) of the sum of x x' over `count` vectors x, from
// column `first` on. The columns before it follow by symmetry. read(i, begin, end, x) writes
// elements [begin, end) of vector i. to: [rows, width], zero.
template <class Read>
void add_products(int64_t count, int64_t width, int64_t first, int threads, const Read& read,
                  double* to) {
  const int64_t rows = std::min(kRowsOfBlock, width - first);
  for_parts(threads, width - first, [&](int64_t begin, int64_t end) {
    std::vector<double> factors(static_cast<size_t>(rows)), x(size_t(end - begin));
    for (int64_t i = 0; i < count; ++i) {
      read(i, first, first + rows, factors.data());
      read(i, first + begin, first + end, x.data());
      for (int64_t r = 0; r < rows; ++r)
        add_scaled(to + r * width + first + begin, factors[size_t(r)], x.data(), end - begin);
    }
  });
}
// Copies the part above the diagonal of a matrix [width, width] to the part below.
void mirror(std::vector<double>& matrix, int64_t width);

}  // namespace eval
