// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/narrow.hpp"
#include "base/span.hpp"
#include "kernels/cast.hpp"
#include "kernels/elementwise.hpp"
#include "shard/initialise.hpp"
#include "shard/stores.hpp"

namespace shard {
namespace {

constexpr int64_t kSmallPart = 64;  // a unit below 1/64 of the parameters counts as small

device::View part_of(const device::Buffer& buffer, int64_t byte, device::DType type,
                     int64_t count) {
  return {static_cast<char*>(buffer.data()) + byte, type, count};
}

}  // namespace

WeightStore::WeightStore(Fabric fabric, int prefetch, const WeightStore* rest, const Lends& lends)
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
  int64_t slot_bytes = 0, rounded_elements = 0;
  for (const auto& block : layout.units_of_block()) {
    int64_t bytes = 0;
    auto reserve = [&](int64_t count, device::DType type) {
      return std::exchange(bytes, bytes + base::round_up(count * device::size_of(type), 64));
    };
    for (int u : block) {
      const Unit& unit = layout.units()[size_t(u)];
      UnitState& s = units_[size_t(u)];
      s.rounded = exchanged_rounded(unit);
      s.lent = rest && lends(unit);
      s.gathered =
          unit.strategy.parameters_sharded && layout.fsdp() > 1 && (!s.rounded || has_operands(u));
      if (s.gathered && s.rounded) s.operands_at = reserve(unit.length, fabric_.operands);
      if (s.gathered && !s.rounded) s.full_at = reserve(unit.length, device::DType::f32);
      int64_t operands = 0;
      int64_t& end = s.gathered ? operands : rounded_elements;
      for (int p : unit.parameters) {
        const Parameter& parameter = layout.parameters()[size_t(p)];
        if (!is_operand(p)) continue;
        // The offset in the rounded unit, or among packed operands, in whole cache lines.
        operand_at_[size_t(p)] = s.rounded
                                     ? parameter.offset
                                     : std::exchange(end, end + base::round_up(parameter.size, 32));
      }
      if (operands) s.operands_at = reserve(operands, fabric_.operands);
    }
    slot_bytes = std::max(slot_bytes, bytes);
  }
  const std::string rounded_category = fmt::format("{} weights", device::name_of(fabric_.operands));
  rounded_operands_ = buffer(rounded_category, rounded_elements * 2);
  for (size_t u = 0; u < units_.size(); ++u) {
    UnitState& s = units_[u];
    const int64_t length = layout.units()[u].length;
    if (!in_rest(int(u)))
      s.held = buffer("weights", length / (holds_part(int(u)) ? layout.fsdp() : 1) * 4);
    if (s.gathered) continue;
    if (s.rounded && has_operands(int(u))) s.rounded_whole = buffer(rounded_category, length * 2);
    if (!s.rounded) s.full = held(int(u));
    s.operands = s.rounded ? s.rounded_whole.view(fabric_.operands)
                           : rounded_operands_.view(fabric_.operands);
  }
  plan_shared_lines();
  if (slot_bytes)
    for (int i = 0; i < 1 + prefetch; ++i)
      slots_.push_back({buffer("gathered", slot_bytes), -1, {}});
}

WeightStore::~WeightStore() {
  // A block that was gathered ahead may never be acquired. Its exchange uses this memory, and its
  // errors end the job elsewhere.
  try {
    for (Slot& slot : slots_)
      for (comm::Ticket& ticket : slot.tickets) ticket.wait();
  } catch (const std::exception&) {
  }
}

// True if a unit is exchanged rounded. A state by rows is not exchanged in a step. Rounding costs 2
// bytes an element and 4 more for each shared one, which is less than 4 if fewer than half are
// shared. A small unit of scales and biases is then exchanged once a step, not whenever its block
// is acquired.
bool WeightStore::exchanged_rounded(const Unit& unit) const {
  if (!operands_are_rounded() || fabric_.layout.fsdp() == 1 || !unit.strategy.optimizer_sharded ||
      unit.by_rows)
    return false;
  int64_t shared = 0;
  for (int p : unit.parameters)
    if (!is_operand(p))
      shared += base::round_up(fabric_.layout.parameters()[size_t(p)].size, kLine);
  return shared * 2 < unit.length || unit.length * kSmallPart <= fabric_.layout.total_elements();
}

// Shared lines: the f32 weights of units exchanged rounded that are not operands. Every rank
// needs them. Each line has kLine elements. This example has two units over two ranks; a, b, c, d
// are shared lines, and a dot is a line of operands, which stays on its rank.
//
//                                     rank 0         rank 1
//   held part of unit 0             [ a . b ]      [ . c . ]
//   held part of unit 1             [ . . d ]      [ . . . ]
//
//   packed: each rank sends         [ a b d ]      [ c - - ]     send_index_  0 2 2 | 1
//   gathered_lines_, on both ranks        [ a b d | c - - ]      lines_per_rank_ = 3, -: padding
//   shared_values_, on both ranks         [ a b c d ]            gathered_index_  0 1 3 2
//
// plan_shared_lines makes the indices and the buffers once; exchange_shared_lines runs in each
// step.
void WeightStore::plan_shared_lines() {
  const Layout& layout = fabric_.layout;
  first_shared_line_.assign(layout.parameters().size(), -1);
  std::vector<int64_t> sent(size_t(layout.fsdp()), 0);  // by rank: number of its lines
  std::vector<std::pair<int64_t, int64_t>> sources;  // by shared line: rank, number among its lines
  std::vector<int32_t> send_index;
  for (size_t u = 0; u < units_.size(); ++u) {
    UnitState& s = units_[u];
    if (!s.rounded) continue;
    s.first_sent_line = int64_t(send_index.size());
    const int64_t lines_of_part = layout.units()[u].length / layout.fsdp() / kLine;
    for (int p : layout.units()[u].parameters) {
      if (is_operand(p)) continue;
      const Parameter& parameter = layout.parameters()[size_t(p)];
      first_shared_line_[size_t(p)] = int64_t(sources.size());
      for (int64_t line = parameter.offset / kLine;
           line * kLine < parameter.offset + parameter.size; ++line) {
        const int64_t rank = line / lines_of_part;
        sources.emplace_back(rank, sent[size_t(rank)]++);
        if (rank == fabric_.mesh.fsdp_index)
          send_index.push_back(base::narrow<int32_t>(line % lines_of_part));
      }
    }
    s.sent_lines = int64_t(send_index.size()) - s.first_sent_line;
  }
  shared_line_count_ = int64_t(sources.size());
  if (shared_line_count_ == 0) return;
  lines_per_rank_ = *std::max_element(sent.begin(), sent.end());
  std::vector<int32_t> gathered_index;
  for (auto [rank, nth] : sources)
    gathered_index.push_back(base::narrow<int32_t>(rank * lines_per_rank_ + nth));
  auto kind = fabric_.queue.kind();
  shared_values_ = device::Buffer(kind, fabric_.ledger, "weights", shared_line_count_ * kLine * 4);
  gathered_lines_ =
      device::Buffer(kind, fabric_.ledger, "gathered", lines_per_rank_ * layout.fsdp() * kLine * 4);
  send_index_ = device::Buffer(kind, fabric_.ledger, "gathered", lines_per_rank_ * 4);
  gathered_index_ = device::Buffer(kind, fabric_.ledger, "gathered", shared_line_count_ * 4);
  device::upload(send_index_.view(device::DType::i32).slice(0, int64_t(send_index.size())),
                 send_index.data(), fabric_.queue);
  device::upload(gathered_index_.view(device::DType::i32).slice(0, shared_line_count_),
                 gathered_index.data(), fabric_.queue);
}

void WeightStore::exchange_shared_lines() {
  if (shared_line_count_ == 0) return;
  const int fsdp = fabric_.layout.fsdp();
  device::View all =
      part_of(gathered_lines_, 0, device::DType::f32, lines_per_rank_ * fsdp * kLine);
  device::View mine =
      all.slice(lines_per_rank_ * fabric_.mesh.fsdp_index * kLine, lines_per_rank_ * kLine);
  for (size_t u = 0; u < units_.size(); ++u) {
    const UnitState& s = units_[u];
    if (s.sent_lines == 0) continue;
    device::View from = held(int(u));
    kernels::run(
        kernels::GatherRows{
            .y = mine.slice(s.first_sent_line * kLine, s.sent_lines * kLine),
            .x = from,
            .index = send_index_.view(device::DType::i32).slice(s.first_sent_line, s.sent_lines),
            .rows = s.sent_lines,
            .width = kLine,
            .source_rows = from.count / kLine},
        fabric_.queue);
  }
  fabric_.mesh.fsdp->all_gather(mine, all, fabric_.queue).wait();
  kernels::run(
      kernels::GatherRows{
          .y = part_of(shared_values_, 0, device::DType::f32, shared_line_count_ * kLine),
          .x = all,
          .index = gathered_index_.view(device::DType::i32).slice(0, shared_line_count_),
          .rows = shared_line_count_,
          .width = kLine,
          .source_rows = lines_per_rank_ * fsdp},
      fabric_.queue);
}

// Rounds this rank's part into its place in `whole`, and starts to receive the other parts.
comm::Ticket WeightStore::gather_rounded(int unit, device::View whole) {
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
        s.rounded
            ? gather_rounded(u, part_of(free->memory, s.operands_at, fabric_.operands, length))
            : fabric_.mesh.fsdp->all_gather(
                  held(u), part_of(free->memory, s.full_at, device::DType::f32, length),
                  fabric_.queue));
  }
  return *free;
}

bool WeightStore::readable(int block) const {
  const auto& units = fabric_.layout.units_of_block()[size_t(block)];
  return std::none_of(units.begin(), units.end(),
                      [&](int u) { return units_[size_t(u)].gathered; });
}

void WeightStore::acquire(int block, int next) {
  auto sharded = [&](int b) { return b >= 0 && !readable(b); };
  // Backward follows forward, so a block that was gathered ahead may not come next: its buffer is
  // freed.
  for (Slot& s : slots_)
    if (s.block >= 0 && s.block != block && s.block != next) {
      for (comm::Ticket& t : s.tickets) t.wait();
      s.tickets.clear();
      s.block = -1;
    }
  if (sharded(block)) finish_gather(block);
  if (slots_.size() > 1 && next != block && sharded(next)) gather(next);
}

// Waits for the block's weights and makes them readable.
void WeightStore::finish_gather(int block) {
  Slot& slot = gather(block);
  for (comm::Ticket& t : slot.tickets) t.wait();
  slot.tickets.clear();
  for (int u : fabric_.layout.units_of_block()[size_t(block)]) {
    UnitState& s = units_[size_t(u)];
    if (!s.gathered) continue;
    const int64_t length = fabric_.layout.units()[size_t(u)].length, end = slot.memory.bytes();
    s.operands = part_of(slot.memory, s.operands_at, fabric_.operands, (end - s.operands_at) / 2);
    if (s.rounded) continue;
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
  if (!s.rounded) {
    CHECK(!s.full.none(), "{} is not acquired", p.path);
    return s.full.slice(p.offset, p.size);
  }
  CHECK(first_shared_line_[size_t(parameter)] >= 0,
        "{} is an operand of products: its f32 values stay with their ranks", p.path);
  CHECK(!s.gathered || !s.operands.none(), "{} is not acquired", p.path);
  return shared_values_.view(device::DType::f32)
      .slice(first_shared_line_[size_t(parameter)] * kLine, p.size);
}

device::View WeightStore::operand(int parameter) const {
  if (!operands_are_rounded()) return weight(parameter);
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  const UnitState& s = units_[size_t(p.unit)];
  CHECK(operand_at_[size_t(parameter)] >= 0, "{} is not declared as an operand of products",
        p.path);
  CHECK(!s.operands.none(), "{} is not acquired", p.path);
  return s.operands.slice(operand_at_[size_t(parameter)], p.size);
}

device::View WeightStore::held(int unit) const {
  if (in_rest(unit)) return holds_part(unit) ? rest_->owned(unit) : rest_->held(unit);
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
    // StateStore::commit changes states by rows wherever they are held.
    const bool changes = unit.kind != ParameterKind::frozen && !(changed_only && unit.by_rows);
    if (s.gathered) continue;
    if (s.rounded) {
      if (!s.rounded_whole.view(fabric_.operands).none() && (changes || !changed_only))
        gather_rounded(int(u), s.operands.slice(0, unit.length)).wait();
      continue;
    }
    if (s.lent && !in_rest(int(u)))
      device::copy(owned(int(u)), rest_->owned(int(u)), fabric_.queue);
    if (s.lent ? !in_rest(int(u)) : unit.strategy.optimizer_sharded && changes)
      fabric_.mesh.fsdp->all_gather(owned(int(u)), held(int(u)), fabric_.queue).wait();
    round_operands(int(u));
  }
  casts_.run(fabric_.queue);
  exchange_shared_lines();
}

void WeightStore::initialise(uint64_t seed) {
  CHECK(!rest_, "some tensors are in another store");
  for (size_t u = 0; u < units_.size(); ++u) {
    device::View mine = held(int(u));
    for (const Segment& s : fabric_.layout.segments(int(u), held_begin(int(u)), mine.count)) {
      const base::Span span("make initial values", s.parameter);
      device::write_on_host(mine.slice(s.offset, s.count()), fabric_.queue,
                            [&](device::View values) {
                              initial_values(fabric_.layout.parameters()[size_t(s.parameter)], seed,
                                             s.begin, s.end, values.f32(), fabric_.queue.threads());
                            });
    }
  }
}

}  // namespace shard
