// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/elementwise.hpp"
#include "shard/stores.hpp"

namespace shard {
using device::DType;
using device::View;

GradientStore::GradientStore(Fabric fabric, int64_t accumulation)
    : fabric_(fabric), accumulation_(accumulation) {
  const Layout& layout = fabric_.layout;
  auto kind = fabric_.queue.kind();
  bool alone = layout.fsdp() == 1;
  units_.resize(layout.units().size());
  pending_.reserve(layout.units().size() + 1);
  int64_t pool_elements = 0, landing_elements = 0;
  for (const auto& block : layout.units_of_block()) {
    int64_t elements = 0;
    for (int u : block) {
      const Unit& unit = layout.units()[size_t(u)];
      UnitState& s = units_[size_t(u)];
      if (!unit.trained()) continue;
      s.local = !fabric_.tree && (alone || !unit.strategy.parameters_sharded);
      if (s.local) s.full = device::Buffer(kind, fabric_.ledger, "gradients", unit.length * 4);
      int slots = fabric_.tree                  ? base::TreeSum::slots(accumulation_)
                  : s.local && !scattered(unit) ? 0
                                                : 1;
      for (int i = 0; i < slots; ++i)
        s.slots.emplace_back(kind, fabric_.ledger, "gradients", layout.owned_count(u) * 4);
      if (!s.local) {
        s.pool_offset = elements;
        elements += unit.length;
      }
      if (!s.local && !fabric_.tree && accumulation_ > 1)
        landing_elements = std::max(landing_elements, layout.owned_count(u));
    }
    pool_elements = std::max(pool_elements, elements);
  }
  if (pool_elements)
    for (device::Buffer& b : pool_)
      b = device::Buffer(kind, fabric_.ledger, "gathered", pool_elements * 4);
  if (landing_elements)
    landing_ = device::Buffer(kind, fabric_.ledger, "gathered", landing_elements * 4);
}

void GradientStore::begin_step() { CHECK(pending_.empty()); }
void GradientStore::begin_micro_batch(int64_t m) { micro_ = m; }

View GradientStore::full_view(int unit) const {
  const UnitState& s = units_[size_t(unit)];
  int64_t length = fabric_.layout.units()[size_t(unit)].length;
  if (s.local) return s.full.view(DType::f32).slice(0, length);
  return pool_[current_pool_].view(DType::f32).slice(s.pool_offset, length);
}

View GradientStore::slot_view(int unit, int slot) const {
  const UnitState& s = units_[size_t(unit)];
  int64_t n = fabric_.layout.owned_count(unit);
  // Level "run" keeps one running sum. Its slot 1 only receives the exchange.
  if (!fabric_.tree && slot > 0) return landing_.view(DType::f32).slice(0, n);
  return s.slots[size_t(slot)].view(DType::f32).slice(0, n);
}

void GradientStore::open(int block) {
  current_pool_ ^= 1;
  // The oldest exchanges may still read the buffer that is about to be overwritten. Exchanges are
  // settled in the order of their starts.
  while (!pending_.empty() && fabric_.layout.units()[size_t(pending_.front().unit)].block ==
                                  pool_block_[current_pool_]) {
    settle(pending_.front());
    pending_.erase(pending_.begin());
  }
  pool_block_[current_pool_] = block;
}

GradientStore::Target GradientStore::gradient(int parameter) const {
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  const UnitState& s = units_[size_t(p.unit)];
  if (!p.trained()) return {};
  return {full_view(p.unit).slice(p.offset, p.size),
          s.local && micro_ > 0 ? kernels::Write::accumulate : kernels::Write::overwrite};
}

void GradientStore::close(int block) {
  for (int u : fabric_.layout.units_of_block()[size_t(block)])
    if (fabric_.layout.units()[size_t(u)].trained() && !units_[size_t(u)].local) exchange(u);
}

void GradientStore::exchange(int unit) {
  const Unit& u = fabric_.layout.units()[size_t(unit)];
  UnitState& s = units_[size_t(unit)];
  View full = full_view(unit);
  // All units share the landing buffer of level "run", so only one exchange may write to it.
  if (!fabric_.tree && micro_ > 0) settle_all();
  int slot = fabric_.tree ? s.sum.next_slot() : int(std::min<int64_t>(micro_, 1));
  View into = slot_view(unit, slot);
  if (scattered(u)) {
    pending_.push_back({unit, slot, fabric_.mesh.fsdp->reduce_scatter(full, into, fabric_.queue)});
  } else {
    fabric_.mesh.fsdp->all_reduce(full, fabric_.queue).wait();
    kernels::run(kernels::Copy{.y = into, .x = full}, fabric_.queue);
    pending_.push_back({unit, slot, {}});
  }
  if (fabric_.tree) settle_all();  // the tree needs this sum before it hands out the next slot
}

void GradientStore::settle(Pending& pending) {
  pending.ticket.wait();
  UnitState& s = units_[size_t(pending.unit)];
  auto add = [&](int into, int from) {
    View y = slot_view(pending.unit, into);
    kernels::run(kernels::Add{.y = y, .a = y, .b = slot_view(pending.unit, from)}, fabric_.queue);
  };
  if (fabric_.tree)
    s.sum.push(add);
  else if (pending.slot > 0)
    add(0, 1);
}

void GradientStore::settle_all() {
  while (!pending_.empty()) {
    settle(pending_.front());
    pending_.erase(pending_.begin());
  }
}

void GradientStore::finish_step() {
  settle_all();
  pool_block_[0] = pool_block_[1] = -1;
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit& u = fabric_.layout.units()[i];
    if (!u.trained()) continue;
    UnitState& s = units_[i];
    if (s.local && scattered(u))
      fabric_.mesh.fsdp->reduce_scatter(full_view(int(i)), slot_view(int(i), 0), fabric_.queue)
          .wait();
    if (s.local && !scattered(u))
      fabric_.mesh.fsdp->all_reduce(full_view(int(i)), fabric_.queue).wait();
    if (fabric_.tree)
      s.sum.finish([&](int into, int from) {
        View y = slot_view(int(i), into);
        kernels::run(kernels::Add{.y = y, .a = y, .b = slot_view(int(i), from)}, fabric_.queue);
      });
    fabric_.mesh.replica->all_reduce(owned(int(i)), fabric_.queue).wait();
  }
}

View GradientStore::owned(int unit) const {
  const UnitState& s = units_[size_t(unit)];
  if (s.local && !scattered(fabric_.layout.units()[size_t(unit)])) return full_view(unit);
  return slot_view(unit, 0);
}

}  // namespace shard
