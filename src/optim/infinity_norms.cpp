// SPDX-License-Identifier: Apache-2.0
#include "optim/infinity_norms.hpp"

namespace optim {

InfinityNorms::InfinityNorms(const shard::Fabric& fabric)
    : fabric_(fabric),
      tensors_(int64_t(fabric.layout.parameters().size())),
      ranks_(fabric.layout.fsdp()),
      table_(fabric.queue.kind(), fabric.ledger, "workspace",
             tensors_ * ranks_ * size_of(device::DType::f64)) {
  const shard::Layout& layout = fabric.layout;
  for (int u = 0; u < int(layout.units().size()); ++u)
    for (const shard::Segment& s :
         layout.segments(u, layout.owned_begin(u, fabric.mesh.fsdp_index), layout.owned_count(u)))
      parts_.push_back({u, s.parameter, s.begin, s.end, s.offset});
}

void InfinityNorms::find(const std::function<device::View(const Piece&)>& gradient) {
  kernels::run(kernels::AddSums{all()}, fabric_.queue);
  for (const Piece& part : parts_)
    if (const device::View g = gradient(part); !g.none())
      list_.add({all().slice(fabric_.mesh.fsdp_index * tensors_ + part.parameter, 1), g});
  list_.run(fabric_.queue);
  fabric_.mesh.fsdp->all_reduce(all(), fabric_.queue).wait();
}

}  // namespace optim
