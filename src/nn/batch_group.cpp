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
  return sum_over(ranks(), sums, slices_, {}, queue);
}

device::View BatchGroup::sum_over(int64_t ranks, device::View sums, int64_t rows, device::View room,
                                  device::Queue& queue) {
  const device::View total = add_along_tree(sums, rows, queue);
  const int64_t fsdp = mesh_.shape.fsdp, width = total.count;
  if (ranks == 1) return total;
  CHECK(ranks > 0 && this->ranks() % ranks == 0, "sums over {} of {} ranks", ranks, this->ranks());
  if (ranks % fsdp == 0) mesh_.fsdp->all_reduce(total, queue).wait();
  if (ranks == this->ranks()) {
    mesh_.replica->all_reduce(total, queue).wait();
    return total;
  }
  // The ranks are a part of the mesh, so sums are gathered, and the part's sums are added.
  auto add_part = [&](int64_t gathered, int64_t mine, int64_t part) {
    const int64_t first = mine / part * part;
    CHECK(first + part <= gathered);
    return add_along_tree(room.slice(first * width, part * width), part, queue);
  };
  if (ranks % fsdp == 0) {
    mesh_.replica->all_gather(total, room.slice(0, mesh_.shape.replica * width), queue).wait();
    return add_part(mesh_.shape.replica, mesh_.replica_index, ranks / fsdp);
  }
  if (fsdp % ranks == 0) {
    mesh_.fsdp->all_gather(total, room.slice(0, fsdp * width), queue).wait();
    return add_part(fsdp, mesh_.fsdp_index, ranks);
  }
  gather(total, room.slice(0, this->ranks() * width), queue);
  return add_part(this->ranks(), rank(), ranks);
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
