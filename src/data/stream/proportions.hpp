// SPDX-License-Identifier: Apache-2.0
// Assigns each position of the training stream to a data set of a mixture. The assignment is a pure
// function of the weights.
//
// The proportions are exact. If whole numbers n_k with a sum of at most 10,000 have the proportion
// of the weights, the smallest such sum is the period. Otherwise the period is 10,000 and the n_k
// are rounded to it by largest remainders. Any `period` consecutive positions hold exactly n_k
// examples of data set k, spread evenly: the examples of a period are sorted by (j + 1/2) / n_k,
// for the j-th example of data set k.
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
  // Weights must be above 0. Throws Error(Exit::config), which names the data set, for a share
  // below 1 in 10,000.
  explicit Proportions(const std::map<std::string, double>& weights);

  int parts() const { return int(places_.size()); }
  int64_t period() const { return int64_t(at_.size()); }
  // Number of the part's examples in a period (n_k).
  int64_t count(int part) const { return int64_t(places_[size_t(part)].size()); }

  Place at(int64_t position) const;  // constant time
  // Returns the position of the part's example with this number (from 0): the inverse of `at`.
  int64_t position_of(Place place) const;
  // Returns the number of the first `positions` positions that belong to the part. Logarithmic
  // time.
  int64_t seen(int part, int64_t positions) const;

 private:
  std::vector<Place> at_;                     // one period
  std::vector<std::vector<int64_t>> places_;  // by part: its places in a period, ascending
};

}  // namespace data
