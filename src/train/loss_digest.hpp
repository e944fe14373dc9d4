// SPDX-License-Identifier: Apache-2.0
// A hash of the measures of all steps of a run. Two runs with the same hash had the same losses to
// the last bit. Checkpoints hold it, so a run that continues ends with the hash of one that was
// never stopped.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "train/member_list.hpp"

namespace train {

class LossDigest {
 public:
  // Adds the measures of a step. Steps are added in their order.
  void add(int64_t step, std::vector<double> measures) {
    if (first_step_ == 0) first_step_ = step;
    // The sign and the payload of a NaN differ between processors.
    for (double& measure : measures)
      if (std::isnan(measure)) measure = std::numeric_limits<double>::quiet_NaN();
    hash_ = base::xxh3(measures.data(), measures.size() * sizeof(double), hash_);
  }
  // The first step that is in the hash; 0: none yet. It is not 1 if the run continues from a file
  // that holds no digest.
  int64_t first_step() const { return first_step_; }
  uint64_t hash() const { return hash_; }

  // Lists the members that checkpoints hold. A number of a checkpoint is a double, so the hash is
  // two of 32 bits.
  void members(MemberList& list) {
    list.number("losses_from", first_step_);
    auto low = int64_t(hash_ & 0xffffffff), high = int64_t(hash_ >> 32);
    list.number("losses_hash_low", low);
    list.number("losses_hash_high", high);
    hash_ = uint64_t(high) << 32 | uint64_t(low);
  }

 private:
  uint64_t hash_ = 0;
  int64_t first_step_ = 0;
};

}  // namespace train
