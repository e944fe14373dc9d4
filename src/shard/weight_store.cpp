#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/cast.hpp"
#include "shard/initialise.hpp"
#include "shard/stores.hpp"

namespace shard {

WeightStore::WeightStore(Fabric fabric, int prefetch) : fabric_(fabric) {
  const Layout& layout = fabric_.layout;
  slot_offset_.resize(layout.units().size());
  full_.resize(layout.units().size());
  narrow_offset_.resize(layout.parameters().size(), -1);
  narrow_.resize(layout.units().size());
  int64_t slot_elements = 0, slot_narrow = 0, held_narrow = 0;
  for (const auto& units : layout.units_of_block()) {
    int64_t elements = 0, narrow = 0;
    for (int u : units) {
      const Unit& unit = layout.units()[size_t(u)];
      if (gathers(u)) slot_offset_[size_t(u)] = elements, elements += unit.length;
      int64_t& end = gathers(u) ? narrow : held_narrow;
      for (int p : unit.parameters)
        if (const Parameter& parameter = layout.parameters()[size_t(p)]; parameter.operand && narrows())
          narrow_offset_[size_t(p)] = end, end += base::round_up(parameter.size, 32);  // whole cache lines
    }
    slot_elements = std::max(slot_elements, elements), slot_narrow = std::max(slot_narrow, narrow);
  }
  auto buffer = [&](const std::string& category, int64_t bytes) {
    return bytes ? device::Buffer(fabric_.queue.kind(), fabric_.ledger, category, bytes) : device::Buffer();
  };
  const std::string narrow_weights = fmt::format("{} weights", device::name_of(fabric_.operands));
  held_narrow_ = buffer(narrow_weights, held_narrow * 2);
  for (size_t u = 0; u < layout.units().size(); ++u) {
    int64_t elements = layout.units()[u].length / (gathers(int(u)) ? layout.fsdp() : 1);
    held_.emplace_back(fabric_.queue.kind(), fabric_.ledger, "weights", elements * 4);
    if (gathers(int(u))) continue;
    full_[u] = held_[u].view(device::DType::f32).slice(0, elements);
    narrow_[u] = held_narrow_.view(fabric_.operands);
  }
  if (slot_elements)
    for (int i = 0; i < 1 + prefetch; ++i)
      slots_.push_back({buffer("gathered", slot_elements * 4), buffer(narrow_weights, slot_narrow * 2), -1, {}});
}

bool WeightStore::gathers(int unit) const {
  return fabric_.layout.units()[size_t(unit)].strategy.parameters_sharded && fabric_.layout.fsdp() > 1;
}

WeightStore::Slot& WeightStore::gather(int block) {
  for (Slot& s : slots_)
    if (s.block == block) return s;
  auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.block < 0; });
  CHECK(free != slots_.end(), "no free buffer to gather block {}", block);
  free->block = block;
  for (int u : fabric_.layout.units_of_block()[size_t(block)])
    if (gathers(u)) {
      device::View all = free->buffer.view(device::DType::f32)
                             .slice(slot_offset_[size_t(u)], fabric_.layout.units()[size_t(u)].length);
      free->tickets.push_back(fabric_.mesh.fsdp->all_gather(held(u), all, fabric_.queue));
    }
  return *free;
}

void WeightStore::acquire(int block, int next) {
  auto sharded = [&](int b) {
    if (b < 0) return false;
    const auto& units = fabric_.layout.units_of_block()[size_t(b)];
    return std::any_of(units.begin(), units.end(), [&](int u) { return gathers(u); });
  };
  if (!sharded(block)) return;
  // A buffer gathered ahead for another block (the direction turned round) is given up.
  for (Slot& s : slots_)
    if (s.block >= 0 && s.block != block) {
      for (comm::Ticket& t : s.tickets) t.wait();
      s.tickets.clear(), s.block = -1;
    }
  Slot& slot = gather(block);
  for (comm::Ticket& t : slot.tickets) t.wait();
  slot.tickets.clear();
  for (int u : fabric_.layout.units_of_block()[size_t(block)])
    if (gathers(u)) {
      full_[size_t(u)] =
          slot.buffer.view(device::DType::f32).slice(slot_offset_[size_t(u)], fabric_.layout.units()[size_t(u)].length);
      narrow(u, slot.narrow.view(fabric_.operands));
    }
  if (slots_.size() > 1 && next != block && sharded(next)) gather(next);
}

void WeightStore::release(int block) {
  for (Slot& s : slots_)
    if (s.block == block) s.block = -1;
  for (int u : fabric_.layout.units_of_block()[size_t(block)])
    if (gathers(u)) full_[size_t(u)] = narrow_[size_t(u)] = {};
}

// The unit's operands, rounded; its weights are there.
void WeightStore::narrow(int unit, device::View into) {
  narrow_[size_t(unit)] = into;
  for (int p : fabric_.layout.units()[size_t(unit)].parameters)
    if (narrow_offset_[size_t(p)] >= 0)
      kernels::run(kernels::Cast{.y = operand(p), .x = weight(p)}, fabric_.queue);
}

device::View WeightStore::weight(int parameter) const {
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  const device::View& unit = full_[size_t(p.unit)];
  CHECK(!unit.none(), "{} is not acquired", p.path);
  return unit.slice(p.offset, p.size);
}

device::View WeightStore::operand(int parameter) const {
  if (!narrows()) return weight(parameter);
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  const device::View& narrow = narrow_[size_t(p.unit)];
  CHECK(narrow_offset_[size_t(parameter)] >= 0, "{} is not declared as an operand of products", p.path);
  CHECK(!narrow.none(), "{} is not acquired", p.path);
  return narrow.slice(narrow_offset_[size_t(parameter)], p.size);
}

device::View WeightStore::held(int unit) const {
  return held_[size_t(unit)]
      .view(device::DType::f32)
      .slice(0, fabric_.layout.units()[size_t(unit)].length / (gathers(unit) ? fabric_.layout.fsdp() : 1));
}

int64_t WeightStore::held_begin(int unit) const {
  return gathers(unit) ? fabric_.layout.owned_begin(unit, fabric_.mesh.fsdp_index) : 0;
}

device::View WeightStore::owned(int unit) const {
  if (gathers(unit)) return held(unit);
  return held(unit).slice(fabric_.layout.owned_begin(unit, fabric_.mesh.fsdp_index), fabric_.layout.owned_count(unit));
}

void WeightStore::publish() {
  for (size_t u = 0; u < held_.size(); ++u) {
    const Unit& unit = fabric_.layout.units()[u];
    if (gathers(int(u))) continue;
    if (unit.strategy.optimizer_sharded && unit.trainable)
      fabric_.mesh.fsdp->all_gather(owned(int(u)), held(int(u)), fabric_.queue).wait();
    narrow(int(u), held_narrow_.view(fabric_.operands));
  }
}

void WeightStore::initialise(uint64_t seed) {
  for (size_t u = 0; u < held_.size(); ++u) {
    device::View mine = held(int(u));
    for (const Segment& s : fabric_.layout.segments(int(u), held_begin(int(u)), mine.count))
      device::write_on_host(mine.slice(s.offset, s.count()), fabric_.queue, [&](device::View values) {
        initial_values(fabric_.layout.parameters()[size_t(s.parameter)], seed, s.begin, s.end, values.f32(),
                       fabric_.queue.threads());
      });
  }
}

}  // namespace shard
