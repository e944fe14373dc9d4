// SPDX-License-Identifier: Apache-2.0
// RankMe (arXiv 2210.02885; ssl.md 8): the effective rank of the matrix of features, one row for
// each image. It needs no labels and no training set.
#include <cmath>

#include "eval/features/rank_method.hpp"
#include "eval/fits/symmetric.hpp"

namespace eval {
namespace {

struct RankMe : RankMethod {
  void bind(config::Table& t) override { bind_tap(t); }
  Words words() const override { return {"rankme", "an effective rank", "", "blocks of products"}; }
  std::vector<Metric> metrics() const override {
    return {{"rankme", "1",
             "exponential of the entropy of the singular values of the features of all images"}};
  }
  std::string test_stage() const override { return "images"; }
  std::vector<double> score(const std::vector<double>&) const override;
};

// The squares of the singular values are eigenvalues of the products. Singular values below 1e-8 of
// the largest one are rounding.
std::vector<double> RankMe::score(const std::vector<double>&) const {
  std::vector<double> matrix = products;
  std::vector<double> values = symmetric_eigenvalues(matrix, test.features, context->threads);
  for (double& v : values) v = std::sqrt(std::max(v, 0.0));
  const auto count = size_t(std::min(test.rows, test.features));
  return {effective_rank(std::span(values).last(count))};
}

}  // namespace

Registered rankme_row() {
  return feature_row<RankMe>("effective rank of the features of a set, without labels");
}

}  // namespace eval
