// SPDX-License-Identifier: Apache-2.0
#include "shard/state_store.hpp"

#include "kernels/ema_update.hpp"

namespace shard {

StateStore::StateStore(Fabric fabric, const std::function<bool(const Unit&)>& keeps)
    : fabric_(fabric), sums_(fabric.queue, fabric.ledger) {
  for (const Unit& unit : fabric_.layout.units()) {
    kept_.push_back(unit.kind == ParameterKind::state && (!keeps || keeps(unit)));
    next_.push_back(kept_.back() ? device::Buffer(fabric_.queue.kind(), fabric_.ledger, "state",
                                                  unit.length * 4)
                                 : device::Buffer());
  }
}

device::View StateStore::whole(size_t unit) const {
  return next_[unit].view(device::DType::f32).slice(0, fabric_.layout.units()[unit].length);
}

void StateStore::begin_step(const WeightStore& weights) {
  for (size_t u = 0; u < next_.size(); ++u) {
    const Unit& unit = fabric_.layout.units()[u];
    if (!kept_[u]) continue;
    if (unit.strategy.optimizer_sharded)
      fabric_.mesh.fsdp->all_gather(weights.owned(int(u)), whole(u), fabric_.queue).wait();
    else
      device::copy(whole(u), weights.owned(int(u)), fabric_.queue);
  }
}

device::View StateStore::next(int parameter) const {
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  CHECK(kept_[size_t(p.unit)], "{} is not a state of this store", p.path);
  return whole(size_t(p.unit)).slice(p.offset, p.size);
}

void StateStore::commit(const WeightStore& weights, device::View decided) {
  const Layout& layout = fabric_.layout;
  for (int u = 0; u < int(next_.size()); ++u) {
    if (!kept_[size_t(u)]) continue;
    const int64_t begin = layout.owned_begin(u, fabric_.mesh.fsdp_index);
    kernels::run(kernels::EmaUpdate{.average = weights.owned(u),
                                    .values = whole(size_t(u)).slice(begin, layout.owned_count(u)),
                                    .decided = decided},
                 fabric_.queue);
  }
}

}  // namespace shard
