// SPDX-License-Identifier: Apache-2.0
#include "nn/batch_group.hpp"

#include "base/tree_sum.hpp"
#include "device/memory.hpp"
#include "kernels/square_sums.hpp"

namespace nn {

device::View add_along_tree(device::View values, int64_t rows, device::Queue& queue) {
  CHECK(rows > 0 && values.count % rows == 0, "{} numbers in {} rows", values.count, rows);
  const int64_t width = values.count / rows;
  auto row = [&](int64_t j) { return values.slice(j * width, width); };
  auto add = [&](int into, int from) {
    kernels::run(kernels::AddSums{row(into), row(into), row(from)}, queue);
  };
  base::TreeSum tree;
  // The slot of row j is at most j, so no sum overwrites a later row.
  for (int64_t j = 0; j < rows; ++j) {
    device::copy(row(tree.next_slot()), row(j), queue);
    tree.push(add);
  }
  tree.finish(add);
  return row(0);
}

device::View BatchGroup::sum(device::View sums, device::Queue& queue) {
  const device::View total = add_along_tree(sums, slices_, queue);
  mesh_.fsdp->all_reduce(total, queue).wait();
  mesh_.replica->all_reduce(total, queue).wait();
  return total;
}

void BatchGroup::gather(device::View mine, device::View all, device::Queue& queue) {
  CHECK(all.count == mine.count * ranks(), "{} elements of each of {} ranks into {}", mine.count,
        ranks(), all.count);
  const int64_t replica_count = mine.count * mesh_.shape.fsdp;
  const device::View replica = all.slice(mesh_.replica_index * replica_count, replica_count);
  mesh_.fsdp->all_gather(mine, replica, queue).wait();
  mesh_.replica->all_gather(replica, all, queue).wait();
}

}  // namespace nn
