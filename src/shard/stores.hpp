// SPDX-License-Identifier: Apache-2.0
// Stores of weights and gradients while a step runs (design 3.3). Models see acquire/release and
// open/close, never a mesh.
#pragma once

#include <functional>

#include "base/tree_sum.hpp"
#include "device/memory.hpp"
#include "kernels/cast.hpp"
#include "shard/parameter.hpp"

namespace shard {

// The objects that all parts of a rank's computation share.
struct Fabric {
  const Layout& layout;
  comm::Mesh& mesh;
  device::Queue& queue;
  device::Ledger& ledger;
  // determinism.level = "mesh": exchange after every micro-batch, add along the tree
  bool tree = false;
  device::DType operands = device::DType::f32;  // of matrix products (precision.compute)
};

// f32 master weights. A replicated unit is whole on every rank. Of a sharded unit each rank holds
// an equal part, and acquire gathers the whole unit into one of 1 + prefetch buffers.
//
// Operands of bf16 and fp16 products are kept rounded as well. They are rounded once a step, or
// each time that acquire gathers their unit.
//
// A unit with a sharded optimizer that consists mostly of operands is exchanged rounded: each rank
// rounds its part and sends that. The f32 masters of operands stay with the rank that owns them.
// f32 weights that every rank needs (scales, other biases) are exchanged once a step ("shared
// lines", weight_store.cpp).
class WeightStore {
 public:
  // Chooses the units whose f32 tensors are in another store, so this store has no memory for them.
  // With lend_all, this store gives the same weights to products of another type. Otherwise it is
  // an average or a teacher.
  using Lends = std::function<bool(const Unit&)>;
  static bool lend_all(const Unit&) { return true; }
  // `rest`: the store that lends tensors. Its lent tensors must be up to date before publish().
  explicit WeightStore(Fabric fabric, int prefetch, const WeightStore* rest = nullptr,
                       const Lends& lends = {});
  ~WeightStore();  // waits for exchanges in flight
  WeightStore(const WeightStore&) = delete;

  // Weights of a block become readable; `next` (or -1) is gathered ahead. Blocks are acquired and
  // released one at a time.
  void acquire(int block, int next = -1);
  void release(int block);
  // True if the block's weights can be read without acquire.
  bool readable(int block) const;
  // f32 [shape], while its block is acquired. Operands of units exchanged rounded have no such
  // view.
  device::View weight(int parameter) const;
  // the input of products: the weight, or its rounded form
  device::View operand(int parameter) const;
  device::DType operands() const { return fabric_.operands; }
  // f32 [layout.owned_count(unit)]: the weights that this rank's optimizer updates
  device::View owned(int unit) const;
  // the weights that this rank keeps: its part, or the whole unit
  device::View held(int unit) const;
  int64_t held_begin(int unit) const;  // first element of `held` within the unit
  // Call it after the optimizer, initialise or a restore has changed the owned parts. Gathers the
  // units that acquire does not gather, and rounds operands again. changed_only: skips frozen
  // units, which no step changes, and states by rows, which StateStore::commit changes everywhere.
  void publish(bool changed_only = false);
  // Fills every held weight from its initial distribution; a pure function of (seed, path,
  // element).
  void initialise(uint64_t seed);

 private:
  struct Slot {
    device::Buffer memory;
    int block = -1;
    std::vector<comm::Ticket> tickets;
  };
  struct UnitState {
    bool gathered = false;         // by acquire
    bool rounded = false;          // exchanged rounded
    bool lent = false;             // by the store `rest`
    device::Buffer held;           // f32
    device::Buffer rounded_whole;  // the whole unit, if it is exchanged rounded and not by acquire
    int64_t full_at = 0, operands_at = 0;  // bytes into a slot
    // the unit's part of the shared lines that this rank sends
    int64_t first_sent_line = 0, sent_lines = 0;
    // full: the whole unit in f32; operands: operand_at_ counts from here. None while not acquired.
    device::View full, operands;
  };
  bool exchanged_rounded(const Unit& unit) const;
  bool operands_are_rounded() const { return fabric_.operands != device::DType::f32; }
  bool is_operand(int parameter) const {
    return operands_are_rounded() && fabric_.layout.parameters()[size_t(parameter)].operand;
  }
  bool holds_part(int unit) const {
    return units_[size_t(unit)].gathered || units_[size_t(unit)].rounded;
  }
  comm::Ticket gather_rounded(int unit, device::View whole);
  // Adds the casts of a unit's operands to casts_. The whole unit must be in memory in f32.
  void round_operands(int unit);
  // True if the unit's f32 weights are read in the store `rest`. A unit that this store keeps
  // whole cannot be read there if `rest` holds only this rank's part.
  bool in_rest(int unit) const {
    return units_[size_t(unit)].lent && (holds_part(unit) || !rest_->holds_part(unit));
  }
  void plan_shared_lines();
  void exchange_shared_lines();
  Slot& gather(int block);
  void finish_gather(int block);

  Fabric fabric_;
  const WeightStore* rest_;
  std::vector<UnitState> units_;
  // by parameter: its first element in its unit's `operands`; -1: not an operand
  std::vector<int64_t> operand_at_;
  kernels::OpList<kernels::Cast> casts_;
  // operands of the units that every rank holds whole in f32
  device::Buffer rounded_operands_;
  std::vector<Slot> slots_;
  // Shared lines (drawing in weight_store.cpp). By parameter: its first line in shared_values_; -1:
  // not shared.
  std::vector<int64_t> first_shared_line_;
  int64_t shared_line_count_ = 0;
  int64_t lines_per_rank_ = 0;     // sent by each rank: padded to the largest count of any rank
  device::Buffer shared_values_;   // f32 [shared_line_count_, kLine]: in the order of parameters
  device::Buffer gathered_lines_;  // f32 [ranks, lines_per_rank_, kLine]: as received
  device::Buffer send_index_;      // i32, by sent line: its number in the held part of its unit
  device::Buffer gathered_index_;  // i32, by shared line: its number in gathered_lines_
};

// Gradients of the owned ranges, summed over micro-batches, fsdp and replicas. Every rank's
// contribution is already scaled by 1 / global_batch, so collectives only add.
//
// An exchange begins when a block closes, and runs during the backward passes of the blocks
// before it. The gradients of replicated parameters accumulate on their rank at level "run", so
// their exchange begins in the last micro-batch. All ranks begin equal exchanges in one order.
class GradientStore {
 public:
  // `accumulation`: micro-batches per step. Units that accumulate on their rank and are not
  // scattered share one exchange if they are of one block, or if they have at most `bucket_bytes`
  // together. If `bucket_bytes` is 0, each unit is exchanged alone. No bit depends on
  // `bucket_bytes`, unless the library's order of sums depends on the length.
  GradientStore(Fabric fabric, int64_t accumulation, int64_t bucket_bytes = 0);
  ~GradientStore();  // waits for exchanges in flight
  GradientStore(const GradientStore&) = delete;

  struct Target {
    device::View view;  // none: frozen, no gradient is needed
    kernels::Write write = kernels::Write::overwrite;
  };
  void begin_step();
  // completes: it is the step's last micro-batch, and exchanges may begin within its passes.
  // Otherwise exchanges of gradients that accumulate on their rank begin in finish_step.
  void begin_micro_batch(int64_t m, bool completes = false);
  void open(int block);  // provides buffers for the block's gradients
  // Each gradient must be written exactly once between open and close.
  Target gradient(int parameter) const;
  // The block's gradients of this micro-batch are complete. Starts their exchange.
  void close(int block);
  void finish_step();                  // owned() holds the sums afterwards
  device::View owned(int unit) const;  // f32 [layout.owned_count(unit)]

 private:
  struct UnitState {
    // true: the whole gradient accumulates on this rank until the last micro-batch
    bool local = false;
    int bucket = -1;                    // -1: not trained
    std::vector<device::Buffer> slots;  // of the owned range; slot 0 holds the sum
    base::TreeSum sum;
    int64_t offset = 0;  // first element in the bucket's memory if local, else in the pool
  };
  // Units that are exchanged together.
  struct Bucket {
    std::vector<int> units;
    int64_t elements = 0;
    device::Buffer memory;   // if local
    size_t closed = 0;       // units whose gradients are complete
    bool exchanged = false;  // the exchange that completes the step has begun
    bool summed = false;     // over the fsdp group and all micro-batches
  };
  struct Pending {
    int bucket, slot;
    bool completes;     // the sums of the step
    device::View full;  // what is exchanged
    comm::Ticket ticket;
  };
  bool scattered(const Unit& unit) const {
    return unit.strategy.optimizer_sharded && fabric_.layout.fsdp() > 1;
  }
  void add_to_bucket(int unit, int64_t bucket_bytes);
  int block_of(const Bucket& bucket) const;
  device::View whole(const Bucket& bucket) const;
  device::View full_view(int unit) const;
  device::View slot_view(int unit, int slot) const;
  void add(int unit, int into, int from);
  size_t count_before(int bucket) const;
  void exchange(int bucket);
  void settle(Pending& pending);
  void sum_over_replicas(Bucket& bucket);
  // Settles the oldest exchanges until `count` are left.
  void settle_to(size_t count);
  void settle_all() { settle_to(0); }

  Fabric fabric_;
  int64_t accumulation_, micro_ = 0;
  bool completes_ = false;
  std::vector<UnitState> units_;
  std::vector<Bucket> buckets_;  // in the order in which backward passes close them
  device::Buffer pool_[2];       // whole units before and during their exchange, one block each
  int pool_block_[2] = {-1, -1};
  int current_pool_ = 0;
  // level "run": receives a reduce-scatter, which is then added to slot 0
  device::Buffer landing_;
  std::vector<Pending> pending_;  // exchanges of the fsdp group in the order of their starts
  std::vector<comm::Ticket> replica_pending_;  // over replicas, likewise
};

}  // namespace shard
