// SPDX-License-Identifier: Apache-2.0
#include "shard/pass_sums.hpp"

#include "kernels/square_sums.hpp"

namespace shard {
using device::View;

View PassSums::add(const Key& key, View values, int64_t passes, bool last) {
  if (passes == 1) return values;
  Sum& sum = sums_[key];
  if (sum.slots.bytes() == 0)
    sum.slots = device::Buffer(queue_.kind(), ledger_, "state",
                               base::TreeSum::slots(passes) * values.bytes());
  auto slot = [&](int i) {
    return sum.slots.view(values.type).slice(i * values.count, values.count);
  };
  auto add = [&](int into, int from) {
    kernels::run(kernels::AddSums{slot(into), slot(into), slot(from)}, queue_);
  };
  device::copy(slot(sum.tree.next_slot()), values, queue_);
  sum.tree.push(add);
  if (last) sum.tree.finish(add);
  return slot(0);
}

void PassSums::reserve(const PassSums& planned) {
  for (const auto& [key, sum] : planned.sums_)
    sums_[key].slots = device::Buffer(queue_.kind(), ledger_, "state", sum.slots.bytes());
}

}  // namespace shard
