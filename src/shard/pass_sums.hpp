// SPDX-License-Identifier: Apache-2.0
// Sums over the passes of a step, in f64, along the tree of level "mesh" (design 3.4). A state that
// is updated from examples is updated once per step with such a sum, so its bits do not depend on
// accumulation. A step of one pass needs no memory for them.
//
// A planned step finds out which sums there are, and `reserve` makes room for them before the first
// step.
#pragma once

#include <map>
#include <utility>

#include "base/tree_sum.hpp"
#include "device/memory.hpp"

namespace shard {

class PassSums {
 public:
  // A state tensor, and the number of the layer's call in a pass.
  using Key = std::pair<int, int64_t>;

  PassSums(device::Queue& queue, device::Ledger& ledger) : queue_(queue), ledger_(ledger) {}

  // Adds the f64 values of a pass to the sum of the earlier passes. All passes of a step must
  // call. The last call returns the sum; earlier views have no meaning.
  device::View add(const Key& key, device::View values, int64_t passes, bool last);
  // Makes room for the sums of the steps that `planned` has counted.
  void reserve(const PassSums& planned);

 private:
  struct Sum {
    device::Buffer slots;
    base::TreeSum tree{};
  };

  device::Queue& queue_;
  device::Ledger& ledger_;
  std::map<Key, Sum> sums_;
};

}  // namespace shard
