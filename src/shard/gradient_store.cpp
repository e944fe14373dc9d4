// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/elementwise.hpp"
#include "shard/stores.hpp"

namespace shard {
using device::DType;
using device::View;

namespace {

// Limit of exchanges in flight on each axis. It bounds the memory of communicators, but lets
// exchanges follow each other without a gap.
constexpr size_t kMostInFlight = 8;

}  // namespace

GradientStore::GradientStore(Fabric fabric, int64_t accumulation, int64_t bucket_bytes)
    : fabric_(fabric), accumulation_(accumulation) {
  const Layout& layout = fabric_.layout;
  auto kind = fabric_.queue.kind();
  const bool alone = layout.fsdp() == 1;
  units_.resize(layout.units().size());
  pending_.reserve(kMostInFlight + 1);
  replica_pending_.reserve(kMostInFlight + 1);
  int64_t pool_elements = 0, landing_elements = 0;
  // Backward passes run blocks in this order, so units close one after the other in a bucket.
  for (size_t block = layout.units_of_block().size(); block-- > 0;) {
    int64_t elements = 0;
    for (int u : layout.units_of_block()[block]) {
      const Unit& unit = layout.units()[size_t(u)];
      UnitState& s = units_[size_t(u)];
      if (!unit.trained()) continue;
      s.local = !fabric_.tree && (alone || !unit.strategy.parameters_sharded);
      int slots = fabric_.tree                  ? base::TreeSum::slots(accumulation_)
                  : s.local && !scattered(unit) ? 0
                                                : 1;
      for (int i = 0; i < slots; ++i)
        s.slots.emplace_back(kind, fabric_.ledger, "gradients", layout.owned_count(u) * 4);
      if (!s.local) {
        s.offset = elements;
        elements += unit.length;
      }
      if (!s.local && !fabric_.tree && accumulation_ > 1)
        landing_elements = std::max(landing_elements, layout.owned_count(u));
      add_to_bucket(u, bucket_bytes);
    }
    pool_elements = std::max(pool_elements, elements);
  }
  for (Bucket& b : buckets_)
    if (units_[size_t(b.units.front())].local)
      b.memory = fabric_.mesh.shared_buffer(kind, fabric_.ledger, "gradients", b.elements * 4);
  if (pool_elements)
    for (device::Buffer& b : pool_)
      b = fabric_.mesh.shared_buffer(kind, fabric_.ledger, "gathered", pool_elements * 4);
  if (landing_elements)
    landing_ = device::Buffer(kind, fabric_.ledger, "gathered", landing_elements * 4);
}

GradientStore::~GradientStore() {
  // Exchanges in flight use this memory. Their errors end the job elsewhere.
  try {
    for (Pending& pending : pending_) pending.ticket.wait();
    for (comm::Ticket& ticket : replica_pending_) ticket.wait();
  } catch (const std::exception&) {
  }
}

// Puts a unit into a bucket, which one exchange serves. Units whose gradients stay whole on this
// rank share a bucket if they are small, or if they belong to one block and so are complete at the
// same time. Other units are exchanged alone.
void GradientStore::add_to_bucket(int unit, int64_t bucket_bytes) {
  UnitState& s = units_[size_t(unit)];
  const Unit& u = fabric_.layout.units()[size_t(unit)];
  auto joins = [&](int other) {
    return units_[size_t(other)].local && !scattered(fabric_.layout.units()[size_t(other)]);
  };
  auto has_room = [&](const Bucket& b) {
    const bool of_block = fabric_.layout.units()[size_t(b.units.back())].block == u.block;
    return bucket_bytes > 0 && (of_block || (b.elements + u.length) * 4 <= bucket_bytes);
  };
  const bool joined = joins(unit) && !buckets_.empty() && joins(buckets_.back().units.front()) &&
                      has_room(buckets_.back());
  if (!joined) buckets_.emplace_back();
  Bucket& b = buckets_.back();
  s.bucket = int(buckets_.size()) - 1;
  if (s.local) s.offset = b.elements;
  b.units.push_back(unit);
  b.elements += u.length;
}

void GradientStore::begin_step() {
  CHECK(pending_.empty() && replica_pending_.empty());
  for (Bucket& b : buckets_) {
    b.closed = 0;
    b.exchanged = b.summed = false;
  }
}

void GradientStore::begin_micro_batch(int64_t m, bool completes) {
  micro_ = m;
  completes_ = completes;
}

View GradientStore::full_view(int unit) const {
  const UnitState& s = units_[size_t(unit)];
  const device::Buffer& memory = s.local ? buckets_[size_t(s.bucket)].memory : pool_[current_pool_];
  return memory.view(DType::f32).slice(s.offset, fabric_.layout.units()[size_t(unit)].length);
}

View GradientStore::slot_view(int unit, int slot) const {
  const UnitState& s = units_[size_t(unit)];
  int64_t n = fabric_.layout.owned_count(unit);
  // Level "run" keeps one running sum. Its slot 1 only receives the exchange.
  if (!fabric_.tree && slot > 0) return landing_.view(DType::f32).slice(0, n);
  return s.slots[size_t(slot)].view(DType::f32).slice(0, n);
}

void GradientStore::open(int block) {
  if (fabric_.layout.units_of_block()[size_t(block)].empty()) return;
  current_pool_ ^= 1;
  // Exchanges may still read the buffer that is about to be overwritten. They are settled in the
  // order of their starts.
  size_t oldest = 0;
  for (size_t i = 0; i < pending_.size(); ++i)
    if (const Bucket& b = buckets_[size_t(pending_[i].bucket)];
        !units_[size_t(b.units.front())].local && block_of(b) == pool_block_[current_pool_])
      oldest = i + 1;
  settle_to(pending_.size() - oldest);
  pool_block_[current_pool_] = block;
}

int GradientStore::block_of(const Bucket& bucket) const {
  return fabric_.layout.units()[size_t(bucket.units.front())].block;
}

GradientStore::Target GradientStore::gradient(int parameter) const {
  const Parameter& p = fabric_.layout.parameters()[size_t(parameter)];
  const UnitState& s = units_[size_t(p.unit)];
  if (!p.trained()) return {};
  return {full_view(p.unit).slice(p.offset, p.size),
          s.local && micro_ > 0 ? kernels::Write::accumulate : kernels::Write::overwrite};
}

void GradientStore::close(int block) {
  for (int u : fabric_.layout.units_of_block()[size_t(block)]) {
    const UnitState& s = units_[size_t(u)];
    if (s.bucket < 0 || (s.local && !completes_)) continue;
    Bucket& b = buckets_[size_t(s.bucket)];
    if (++b.closed == b.units.size()) exchange(s.bucket);
  }
}

// Returns how many of the oldest exchanges must be settled before this one may begin. The tree adds
// a unit's sum before it hands out the next slot. At level "run" all units share the landing
// buffer, so only one exchange may write to it.
size_t GradientStore::count_before(int bucket) const {
  const bool lands =
      !fabric_.tree && micro_ > 0 && !units_[size_t(buckets_[size_t(bucket)].units.front())].local;
  size_t count = 0;
  for (size_t i = 0; i < pending_.size(); ++i)
    if (pending_[i].bucket == bucket || (lands && pending_[i].slot > 0)) count = i + 1;
  return count;
}

void GradientStore::exchange(int bucket) {
  Bucket& b = buckets_[size_t(bucket)];
  const int unit = b.units.front();
  UnitState& s = units_[size_t(unit)];
  settle_to(std::min(kMostInFlight - 1, pending_.size() - count_before(bucket)));
  const int slot = s.local        ? 0
                   : fabric_.tree ? s.sum.next_slot()
                                  : int(std::min<int64_t>(micro_, 1));
  b.closed = 0;
  b.exchanged = completes_;
  View full = s.local ? whole(b) : full_view(unit);
  comm::Ticket ticket =
      scattered(fabric_.layout.units()[size_t(unit)])
          ? fabric_.mesh.fsdp->reduce_scatter(full, slot_view(unit, slot), fabric_.queue)
          : fabric_.mesh.fsdp->all_reduce(full, fabric_.queue);
  pending_.push_back({bucket, slot, completes_, full, ticket});
  // The exchange over replicas follows the exchange over the group. All ranks start it at the
  // same place, when the next exchange has started.
  if (fabric_.layout.fsdp() == 1)
    settle_all();
  else if (fabric_.mesh.shape.replica > 1)
    settle_to(1);
}

void GradientStore::add(int unit, int into, int from) {
  View y = slot_view(unit, into);
  kernels::run(kernels::Add{.y = y, .a = y, .b = slot_view(unit, from)}, fabric_.queue);
}

void GradientStore::settle(Pending& pending) {
  pending.ticket.wait();
  Bucket& b = buckets_[size_t(pending.bucket)];
  const int unit = b.units.front();
  UnitState& s = units_[size_t(unit)];
  if (!s.local && !scattered(fabric_.layout.units()[size_t(unit)]))
    kernels::run(kernels::Copy{.y = slot_view(unit, pending.slot), .x = pending.full},
                 fabric_.queue);
  if (fabric_.tree)
    s.sum.push([&](int into, int from) { add(unit, into, from); });
  else if (pending.slot > 0)
    add(unit, 0, 1);
  if (pending.completes) sum_over_replicas(b);
}

// The sums of the fsdp group are complete, and those over replicas begin.
void GradientStore::sum_over_replicas(Bucket& b) {
  const int unit = b.units.front();
  UnitState& s = units_[size_t(unit)];
  if (fabric_.tree) s.sum.finish([&](int into, int from) { add(unit, into, from); });
  b.summed = true;
  const View sum =
      s.local && !scattered(fabric_.layout.units()[size_t(unit)]) ? whole(b) : owned(unit);
  if (replica_pending_.size() == kMostInFlight) {
    replica_pending_.front().wait();
    replica_pending_.erase(replica_pending_.begin());
  }
  replica_pending_.push_back(fabric_.mesh.replica->all_reduce(sum, fabric_.queue));
}

void GradientStore::settle_to(size_t count) {
  while (pending_.size() > count) {
    settle(pending_.front());
    pending_.erase(pending_.begin());
  }
}

void GradientStore::finish_step() {
  completes_ = true;
  // Some exchanges have not begun, if no graph could hold them or blocks had no backward pass.
  for (size_t i = 0; i < buckets_.size(); ++i)
    if (units_[size_t(buckets_[i].units.front())].local && !buckets_[i].exchanged) exchange(int(i));
  settle_all();
  for (Bucket& b : buckets_)
    if (!b.summed) sum_over_replicas(b);
  for (comm::Ticket& ticket : replica_pending_) ticket.wait();
  replica_pending_.clear();
  pool_block_[0] = pool_block_[1] = -1;
}

View GradientStore::whole(const Bucket& bucket) const {
  return bucket.memory.view(DType::f32).slice(0, bucket.elements);
}

View GradientStore::owned(int unit) const {
  const UnitState& s = units_[size_t(unit)];
  if (s.local && !scattered(fabric_.layout.units()[size_t(unit)])) return full_view(unit);
  return slot_view(unit, 0);
}

}  // namespace shard
