// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/narrow.hpp"
#include "kernels/cast.hpp"
#include "kernels/elementwise.hpp"
#include "shard/initialise.hpp"
#include "shard/stores.hpp"

namespace shard {
namespace {

constexpr int64_t kSmallPart = 64;  // a unit of which so many would be a model is small

device::View part_of(const device::Buffer& buffer, int64_t byte, device::DType type,
                     int64_t count) {
  return {static_cast<char*>(buffer.data()) + byte, type, count};
}

}  // namespace

WeightStore::WeightStore(Fabric fabric, int prefetch, const WeightStore* rest)
    : fabric_(fabric),
      rest_(rest),
      units_(fabric.layout.units().size()),
      operand_at_(fabric.layout.parameters().size(), -1) {
  const Layout& layout = fabric_.layout;
  auto has_operands = [&](int unit) {
    const auto& of = layout.units()[size_t(unit)].parameters;
    return std::any_of(of.begin(), of.end(), [this](int p) { return is_operand(p); });
  };
  auto buffer = [&](const std::string& category, int64_t bytes) {
    return bytes ? device::Buffer(fabric_.queue.kind(), fabric_.ledger, category, bytes)
                 : device::Buffer();
  };
  int64_t slot_bytes = 0, held_narrow = 0;
  for (const auto& block : layout.units_of_block()) {
    int64_t bytes = 0;
    auto take = [&](int64_t count, device::DType type) {
      return std::exchange(bytes, bytes + base::round_up(count * device::size_of(type), 64));
    };
    for (int u : block) {
      const Unit& unit = layout.units()[size_t(u)];
      UnitState& s = units_[size_t(u)];
      s.narrow = travels_narrow(unit);
      s.gathered =
          unit.strategy.parameters_sharded && layout.fsdp() > 1 && (!s.narrow || has_operands(u));
      if (s.gathered && s.narrow) s.narrow_at = take(unit.length, fabric_.operands);
      if (s.gathered && !s.narrow) s.full_at = take(unit.length, device::DType::f32);
      int64_t operands = 0;
      int64_t& end = s.gathered ? operands : held_narrow;
      for (int p : unit.parameters) {
        const Parameter& parameter = layout.parameters()[size_t(p)];
        if (!is_operand(p)) continue;
        // Where each lies in the unit, or by itself, in whole cache lines.
        operand_at_[size_t(p)] = s.narrow
                                     ? parameter.offset
                                     : std::exchange(end, end + base::round_up(parameter.size, 32));
      }
      if (operands) s.narrow_at = take(operands, fabric_.operands);
    }
    slot_bytes = std::max(slot_bytes, bytes);
  }
  const std::string narrow_weights = fmt::format("{} weights", device::name_of(fabric_.operands));
  held_narrow_ = buffer(narrow_weights, held_narrow * 2);
  for (size_t u = 0; u < units_.size(); ++u) {
    UnitState& s = units_[u];
    const int64_t length = layout.units()[u].length;
    if (!elsewhere(int(u)))
      s.held = buffer("weights", length / (holds_part(int(u)) ? layout.fsdp() : 1) * 4);
    if (s.gathered) continue;
    if (s.narrow && has_operands(int(u))) s.whole = buffer(narrow_weights, length * 2);
    if (!s.narrow) s.full = held(int(u));
    s.operands = s.narrow ? s.whole.view(fabric_.operands) : held_narrow_.view(fabric_.operands);
  }
  find_lines();
  if (slot_bytes)
    for (int i = 0; i < 1 + prefetch; ++i)
      slots_.push_back({buffer("gathered", slot_bytes), -1, {}});
}

// Half the bytes for its operands, and f32 for the rest: where most is not for products, all in f32
// is less. A unit of a few scales and biases is wanted in f32 alone: once a step instead of
// whenever its block is acquired.
bool WeightStore::travels_narrow(const Unit& unit) const {
  if (!narrows() || fabric_.layout.fsdp() == 1 || !unit.strategy.optimizer_sharded) return false;
  int64_t wide = 0;
  for (int p : unit.parameters)
    if (!is_operand(p)) wide += base::round_up(fabric_.layout.parameters()[size_t(p)].size, kLine);
  return wide * 2 < unit.length || unit.length * kSmallPart <= fabric_.layout.total_elements();
}

// Which rank holds each line that is wanted in f32, and where it lies when all have sent theirs.
void WeightStore::find_lines() {
  const Layout& layout = fabric_.layout;
  line_of_.assign(layout.parameters().size(), -1);
  std::vector<int64_t> sent(size_t(layout.fsdp()), 0);  // by rank
  std::vector<std::pair<int64_t, int64_t>> from;        // by line: rank, and its how many-th
  std::vector<int32_t> own;
  for (size_t u = 0; u < units_.size(); ++u) {
    UnitState& s = units_[u];
    if (!s.narrow) continue;
    s.lines_at = int64_t(own.size());
    const int64_t each = layout.units()[u].length / layout.fsdp() / kLine;
    for (int p : layout.units()[u].parameters) {
      if (is_operand(p)) continue;
      const Parameter& parameter = layout.parameters()[size_t(p)];
      line_of_[size_t(p)] = int64_t(from.size());
      for (int64_t line = parameter.offset / kLine;
           line * kLine < parameter.offset + parameter.size; ++line) {
        const int64_t rank = line / each;
        from.emplace_back(rank, sent[size_t(rank)]++);
        if (rank == fabric_.mesh.fsdp_index) own.push_back(base::narrow<int32_t>(line % each));
      }
    }
    s.lines = int64_t(own.size()) - s.lines_at;
  }
  lines_ = int64_t(from.size());
  if (lines_ == 0) return;
  most_lines_ = *std::max_element(sent.begin(), sent.end());
  std::vector<int32_t> places;
  for (auto [rank, nth] : from) places.push_back(base::narrow<int32_t>(rank * most_lines_ + nth));
  auto kind = fabric_.queue.kind();
  wide_ = device::Buffer(kind, fabric_.ledger, "weights", lines_ * kLine * 4);
  packed_ =
      device::Buffer(kind, fabric_.ledger, "gathered", most_lines_ * layout.fsdp() * kLine * 4);
  own_lines_ = device::Buffer(kind, fabric_.ledger, "gathered", most_lines_ * 4);
  places_ = device::Buffer(kind, fabric_.ledger, "gathered", lines_ * 4);
  device::upload(own_lines_.view(device::DType::i32).slice(0, int64_t(own.size())), own.data(),
                 fabric_.queue);
  device::upload(places_.view(device::DType::i32).slice(0, lines_), places.data(), fabric_.queue);
}

void WeightStore::share_lines() {
  if (lines_ == 0) return;
  const int fsdp = fabric_.layout.fsdp();
  device::View all = part_of(packed_, 0, device::DType::f32, most_lines_ * fsdp * kLine);
  device::View mine = all.slice(most_lines_ * fabric_.mesh.fsdp_index * kLine, most_lines_ * kLine);
  for (size_t u = 0; u < units_.size(); ++u) {
    const UnitState& s = units_[u];
    if (s.lines == 0) continue;
    device::View from = held(int(u));
    kernels::run(
        kernels::GatherRows{.y = mine.slice(s.lines_at * kLine, s.lines * kLine),
                            .x = from,
                            .index = own_lines_.view(device::DType::i32).slice(s.lines_at, s.lines),
                            .rows = s.lines,
                            .width = kLine,
                            .source_rows = from.count / kLine},
        fabric_.queue);
  }
  fabric_.mesh.fsdp->all_gather(mine, all, fabric_.queue).wait();
  kernels::run(kernels::GatherRows{.y = part_of(wide_, 0, device::DType::f32, lines_ * kLine),
                                   .x = all,
                                   .index = places_.view(device::DType::i32).slice(0, lines_),
                                   .rows = lines_,
                                   .width = kLine,
                                   .source_rows = most_lines_ * fsdp},
               fabric_.queue);
}

// This rank's part is rounded to where it lies in `whole`, and the others' are received.
comm::Ticket WeightStore::gather_narrow(int unit, device::View whole) {
  device::View mine = whole.slice(held_begin(unit), held(unit).count);
  kernels::run(kernels::Cast{.y = mine, .x = held(unit)}, fabric_.queue);
  return fabric_.mesh.fsdp->all_gather(mine, whole, fabric_.queue);
}

WeightStore::Slot& WeightStore::gather(int block) {
  for (Slot& s : slots_)
    if (s.block == block) return s;
  auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.block < 0; });
  CHECK(free != slots_.end(), "no free buffer to gather block {}", block);
  free->block = block;
  for (int u : fabric_.layout.units_of_block()[size_t(block)]) {
    const UnitState& s = units_[size_t(u)];
    const int64_t length = fabric_.layout.units()[size_t(u)].length;
    if (!s.gathered) continue;
    free->tickets.push_back(
        s.narrow ? gather_narrow(u, part_of(free->memory, s.narrow_at, fabric_.operands, length))
                 : fabric_.mesh.fsdp->all_gather(
                       held(u), part_of(free->memory, s.full_at, device::DType::f32, length),
                       fabric_.queue));
  }
  return *free;
}

void WeightStore::acquire(int block, int next) {
  auto sharded = [&](int b) {
    if (b < 0) return false;
    const auto& units = fabric_.layout.units_of_block()[size_t(b)];
    return std::any_of(units.begin(), units.end(),
                       [&](int u) { return units_[size_t(u)].gathered; });
  };
  // A buffer gathered ahead for another block (the direction turned round) is given up.
  for (Slot& s : slots_)
    if (s.block >= 0 && s.block != block && s.block != next) {
      for (comm::Ticket& t : s.tickets) t.wait();
      s.tickets.clear();
      s.block = -1;
    }
  if (sharded(block)) take(block);
  if (slots_.size() > 1 && next != block && sharded(next)) gather(next);
}

// Waits for the block's weights.
void WeightStore::take(int block) {
  Slot& slot = gather(block);
  for (comm::Ticket& t : slot.tickets) t.wait();
  slot.tickets.clear();
  for (int u : fabric_.layout.units_of_block()[size_t(block)]) {
    UnitState& s = units_[size_t(u)];
    if (!s.gathered) continue;
    const int64_t length = fabric_.layout.units()[size_t(u)].length, end = slot.memory.bytes();
    s.operands = part_of(slot.memory, s.narrow_at, fabric_.operands, (end - s.narrow_at) / 2);
    if (s.narrow) continue;
    s.full = part_of(slot.memory, s.full_at, device::DType::f32, length);
    round_operands(u);
  }
  casts_.run(fabric_.queue);
}

void WeightStore::release(int block) {
  for (Slot& s : slots_)
    if (s.block == block) s.block = -1;
  for (int u : fabric_.layout.units_of_block()[size_t(block)])
    if (UnitState& s = units_[size_t(u)]; s.gathered) s.full = s.operands = {};
}

void WeightStore::round_operands(int unit) {
  for (int p : fabric_.layout.units()[size_t(unit)].parameters)
    if (operand_at_[size_t(p)] >= 0) casts_.add({.y = operand(p), .x = weight(p)});
}

device::View WeightStore::weight(int parameter) const {
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  const UnitState& s = units_[size_t(p.unit)];
  if (!s.narrow) {
    CHECK(!s.full.none(), "{} is not acquired", p.path);
    return s.full.slice(p.offset, p.size);
  }
  CHECK(line_of_[size_t(parameter)] >= 0,
        "{} is an operand of products: its f32 values stay with their ranks", p.path);
  CHECK(!s.gathered || !s.operands.none(), "{} is not acquired", p.path);
  return wide_.view(device::DType::f32).slice(line_of_[size_t(parameter)] * kLine, p.size);
}

device::View WeightStore::operand(int parameter) const {
  if (!narrows()) return weight(parameter);
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  const UnitState& s = units_[size_t(p.unit)];
  CHECK(operand_at_[size_t(parameter)] >= 0, "{} is not declared as an operand of products",
        p.path);
  CHECK(!s.operands.none(), "{} is not acquired", p.path);
  return s.operands.slice(operand_at_[size_t(parameter)], p.size);
}

device::View WeightStore::held(int unit) const {
  if (elsewhere(unit)) return rest_->held(unit);
  return units_[size_t(unit)]
      .held.view(device::DType::f32)
      .slice(0, fabric_.layout.units()[size_t(unit)].length /
                    (holds_part(unit) ? fabric_.layout.fsdp() : 1));
}

int64_t WeightStore::held_begin(int unit) const {
  return holds_part(unit) ? fabric_.layout.owned_begin(unit, fabric_.mesh.fsdp_index) : 0;
}

device::View WeightStore::owned(int unit) const {
  if (holds_part(unit)) return held(unit);
  return held(unit).slice(fabric_.layout.owned_begin(unit, fabric_.mesh.fsdp_index),
                          fabric_.layout.owned_count(unit));
}

void WeightStore::publish(bool changed_only) {
  for (size_t u = 0; u < units_.size(); ++u) {
    const UnitState& s = units_[u];
    const Unit& unit = fabric_.layout.units()[u];
    const bool changes = unit.kind != ParameterKind::frozen;
    if (s.gathered) continue;
    if (s.narrow) {
      if (!s.whole.view(fabric_.operands).none() && (changes || !changed_only))
        gather_narrow(int(u), s.operands.slice(0, unit.length)).wait();
      continue;
    }
    if (unit.strategy.optimizer_sharded && changes)
      fabric_.mesh.fsdp->all_gather(owned(int(u)), held(int(u)), fabric_.queue).wait();
    round_operands(int(u));
  }
  casts_.run(fabric_.queue);
  share_lines();
}

void WeightStore::initialise(uint64_t seed) {
  CHECK(!rest_, "the tensors that are not trained lie in another store");
  for (size_t u = 0; u < units_.size(); ++u) {
    device::View mine = held(int(u));
    for (const Segment& s : fabric_.layout.segments(int(u), held_begin(int(u)), mine.count))
      device::write_on_host(mine.slice(s.offset, s.count()), fabric_.queue,
                            [&](device::View values) {
                              initial_values(fabric_.layout.parameters()[size_t(s.parameter)], seed,
                                             s.begin, s.end, values.f32(), fabric_.queue.threads());
                            });
  }
}

}  // namespace shard
