// SPDX-License-Identifier: Apache-2.0
// Means of the model's measures over the examples of an epoch, as they were in training: the meters
// of a training phase (ssl.md 7). Checkpoints hold the sums, so a run that continues in the middle
// of an epoch gives the same means to the bit.
#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"
#include "train/member_list.hpp"

namespace train {

class EpochMeans {
 public:
  // Adds the sums of a step over its examples, by column of the model.
  void add(const std::vector<double>& sums, int64_t examples) {
    sums_.resize(sums.size(), 0.0);
    for (size_t c = 0; c < sums.size(); ++c) sums_[c] += sums[c];
    examples_ += examples;
  }
  void clear() {
    sums_.clear();
    examples_ = 0;
  }
  int64_t examples() const { return examples_; }
  // Returns the mean of a measure over the examples since clear(); there must be some.
  double mean(const models::Measure& measure) const {
    return measure.value(sums_.data(), examples_);
  }
  // Lists the members that checkpoints hold; none at the beginning of an epoch.
  void members(MemberList& list) {
    if (!list.has("epoch_examples", examples_ > 0)) return;
    list.number("epoch_examples", examples_);
    auto columns = int64_t(sums_.size());
    list.number("epoch_columns", columns);
    sums_.resize(size_t(columns), 0.0);
    for (size_t c = 0; c < sums_.size(); ++c)
      list.number("epoch_sum" + std::to_string(c), sums_[c]);
  }

 private:
  std::vector<double> sums_;
  int64_t examples_ = 0;
};

}  // namespace train
