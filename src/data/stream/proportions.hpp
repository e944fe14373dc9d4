// SPDX-License-Identifier: Apache-2.0
// Which data set of a mixture each position of the training stream belongs to: a pure function of
// the weights.
//
// Exact: if the weights have whole numbers n_k in their proportion with a sum of at most 10,000,
// that sum (the smallest) is the period; else the period is 10,000 and the n_k are rounded to it by
// largest remainders. Any `period` positions in a row hold exactly n_k examples of data set k,
// spread evenly: its j-th one stands where (j + 1/2) / n_k comes in the order of all.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace data {

class Proportions {
 public:
  struct Place {
    int part = 0;          // data set, in the order of the names
    int64_t position = 0;  // within that data set's own stream
  };

  Proportions() : Proportions({{"", 1.0}}) {}
  // Weights above 0. Error(Exit::config) names a data set whose share is less than 1 in 10,000.
  explicit Proportions(const std::map<std::string, double>& weights);

  int parts() const { return int(places_.size()); }
  int64_t period() const { return int64_t(at_.size()); }
  // in a period: n_k
  int64_t count(int part) const { return int64_t(places_[size_t(part)].size()); }

  Place at(int64_t position) const;  // constant time
  // How many of the first `positions` positions belong to the part; logarithmic time.
  int64_t seen(int part, int64_t positions) const;

 private:
  std::vector<Place> at_;                     // one period
  std::vector<std::vector<int64_t>> places_;  // by part: where it stands in a period, ascending
};

}  // namespace data
