// SPDX-License-Identifier: Apache-2.0
// Where weights and gradients live while a step runs (design 3.3). Models see acquire/release and
// open/close, never a mesh.
#pragma once

#include "base/tree_sum.hpp"
#include "device/memory.hpp"
#include "kernels/cast.hpp"
#include "shard/parameter.hpp"

namespace shard {

// What all parts of a rank's computation share.
struct Fabric {
  const Layout& layout;
  comm::Mesh& mesh;
  device::Queue& queue;
  device::Ledger& ledger;
  // determinism.level = "mesh": exchange after every micro-batch, add along the tree
  bool tree = false;
  device::DType operands = device::DType::f32;  // of matrix products (precision.compute)
};

// f32 master weights. Replicated: the whole unit on every rank. Sharded: this rank's equal part;
// acquire gathers the whole unit into one of 1 + prefetch buffers. Operands of narrow products are
// kept rounded as well: made once a step, or where weights are gathered, whenever they are. Units
// with a sharded optimizer of which products take the most travel rounded: each rank rounds its
// part, the f32 masters of operands stay with the rank that owns them, and what is wanted in f32
// (scales, other biases) goes to all ranks once a step.
class WeightStore {
 public:
  // `rest`: the store that holds the tensors that are not trained; this one then has no memory for
  // them (an average, a teacher).
  WeightStore(Fabric fabric, int prefetch, const WeightStore* rest = nullptr);

  // Weights of a block become readable; `next` (or -1) is gathered ahead. Blocks are acquired and
  // released one at a time.
  void acquire(int block, int next = -1);
  void release(int block);
  // [shape], while its block is acquired; not of operands that travel rounded
  device::View weight(int parameter) const;
  // what products take: the weight, or its rounded form
  device::View operand(int parameter) const;
  device::DType operands() const { return fabric_.operands; }
  // f32, [layout.owned_count(unit)]: what the optimizer updates
  device::View owned(int unit) const;
  // what this rank keeps: its part, or the whole unit
  device::View held(int unit) const;
  int64_t held_begin(int unit) const;  // first element of `held` within the unit
  // After the optimizer (or initialise, or a restore) changed the owned parts: what is not gathered
  // by acquire is gathered, and rounded operands are made anew. changed_only: frozen units, which
  // no step changes, are left as they are.
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
    bool gathered = false;  // by acquire
    bool narrow = false;    // travels rounded
    // whole: of a narrow unit that is not gathered by acquire
    device::Buffer held, whole;
    int64_t full_at = 0, narrow_at = 0;  // bytes into a slot
    // this rank's lines wanted in f32, among all of them
    int64_t lines_at = 0, lines = 0;
    // f32 whole; where offsets of operands count from; none while not acquired
    device::View full, operands;
  };
  bool travels_narrow(const Unit& unit) const;
  bool narrows() const { return fabric_.operands != device::DType::f32; }
  bool is_operand(int parameter) const {
    return narrows() && fabric_.layout.parameters()[size_t(parameter)].operand;
  }
  bool holds_part(int unit) const {
    return units_[size_t(unit)].gathered || units_[size_t(unit)].narrow;
  }
  comm::Ticket gather_narrow(int unit, device::View whole);
  // of a unit whose f32 weights are all there: asks for the casts
  void round_operands(int unit);
  bool elsewhere(int unit) const {
    return rest_ && !fabric_.layout.units()[size_t(unit)].trained();
  }
  void find_lines();
  void share_lines();
  Slot& gather(int block);
  void take(int block);

  Fabric fabric_;
  const WeightStore* rest_;
  std::vector<UnitState> units_;
  // by parameter: elements into its unit's `operands`; -1: not an operand
  std::vector<int64_t> operand_at_;
  kernels::OpList<kernels::Cast> casts_;
  // operands of the units that are whole on every rank
  device::Buffer held_narrow_;
  std::vector<Slot> slots_;
  // Of units that travel rounded, the lines wanted in f32: every rank packs its own, each rank's as
  // many as of the one with the most. by parameter: its first line in wide_; -1: not there
  std::vector<int64_t> line_of_;
  int64_t lines_ = 0, most_lines_ = 0;
  device::Buffer wide_, packed_;
  // i32: in the held part of their unit; where wide_'s lie in packed_
  device::Buffer own_lines_, places_;
};

// Gradients of the owned ranges, summed over micro-batches, fsdp and replicas. Every rank's
// contribution is already scaled by 1 / global_batch, so collectives only sum.
class GradientStore {
 public:
  // `accumulation`: micro-batches per step.
  GradientStore(Fabric fabric, int64_t accumulation);

  struct Target {
    device::View view;  // none: frozen, nobody wants it
    kernels::Write write = kernels::Write::overwrite;
  };
  void begin_step();
  void begin_micro_batch(int64_t m);
  void open(int block);  // buffers for the block's gradients
  // each is written exactly once between open and close
  Target gradient(int parameter) const;
  // the block's gradients are complete: exchange them if it is time
  void close(int block);
  void finish_step();                  // owned() holds the sums afterwards
  device::View owned(int unit) const;  // f32 [layout.owned_count(unit)]

 private:
  struct UnitState {
    // accumulates whole, on this rank, until the end of the step
    bool local = false;
    device::Buffer full;                // local, or fsdp size 1
    std::vector<device::Buffer> slots;  // owned range; slot 0 holds the sum
    base::TreeSum sum;
    int64_t pool_offset = 0;
  };
  struct Pending {
    int unit, slot;
    comm::Ticket ticket;
  };
  bool scattered(const Unit& unit) const {
    return unit.strategy.optimizer_sharded && fabric_.layout.fsdp() > 1;
  }
  device::View full_view(int unit) const;
  device::View slot_view(int unit, int slot) const;
  void exchange(int unit);
  void settle(Pending& pending);
  void settle_all();

  Fabric fabric_;
  int64_t accumulation_, micro_ = 0;
  std::vector<UnitState> units_;
  device::Buffer pool_[2];  // whole units on their way, two blocks at a time
  int pool_block_[2] = {-1, -1};
  int current_pool_ = 0;
  // level "run": where a reduce-scatter lands before it is added
  device::Buffer landing_;
  std::vector<Pending> pending_;  // in the order they began
};

}  // namespace shard
