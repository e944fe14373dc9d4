// Where weights and gradients live while a step runs (design 3.3). Models see acquire/release and open/close, never a mesh.
#pragma once

#include "base/tree_sum.hpp"
#include "device/memory.hpp"
#include "kernels/dispatch.hpp"
#include "shard/parameter.hpp"

namespace shard {

// What all parts of a rank's computation share.
struct Fabric {
  const Layout& layout;
  comm::Mesh& mesh;
  device::Queue& queue;
  device::Ledger& ledger;
  bool tree = false;   // determinism.level = "mesh": exchange after every micro-batch, add along the tree
  device::DType operands = device::DType::f32;  // of matrix products (precision.compute)
};

// f32 master weights. Replicated: the whole unit on every rank. Sharded: this rank's equal part; acquire gathers the whole
// unit into one of 1 + prefetch buffers. Operands of narrow products are kept rounded as well: made once a step, or
// where weights are gathered, whenever they are.
class WeightStore {
 public:
  WeightStore(Fabric fabric, int prefetch);

  // Weights of a block become readable; `next` (or -1) is gathered ahead. Blocks are acquired and released one at a time.
  void acquire(int block, int next = -1);
  void release(int block);
  device::View weight(int parameter) const;      // [shape], while its block is acquired
  device::View operand(int parameter) const;     // what products take: the weight, or its rounded form
  device::DType operands() const { return fabric_.operands; }
  device::View owned(int unit) const;            // f32, [layout.owned_count(unit)]: what the optimizer updates
  device::View held(int unit) const;             // what this rank keeps: the shard, or the whole unit
  int64_t held_begin(int unit) const;            // first element of `held` within the unit
  // After the optimizer (or a restore) changed the owned parts: replicated weights with a sharded optimizer gather the rest,
  // and rounded operands are made anew.
  void publish();
  // Fills every held weight from its initial distribution; a pure function of (seed, path, element).
  void initialise(uint64_t seed);

 private:
  struct Slot {
    device::Buffer buffer, narrow;
    int block = -1;
    std::vector<comm::Ticket> tickets;
  };
  bool gathers(int unit) const;
  bool narrows() const { return fabric_.operands != device::DType::f32; }
  void narrow(int unit, device::View into);
  Slot& gather(int block);

  Fabric fabric_;
  std::vector<device::Buffer> held_;             // by unit
  std::vector<int64_t> slot_offset_;             // by unit: where it lies in a slot
  std::vector<Slot> slots_;
  std::vector<device::View> full_;               // by unit: whole unit, none while not acquired
  // rounded operands of products
  device::Buffer held_narrow_;                   // of the units that are not gathered
  std::vector<int64_t> narrow_offset_;           // by parameter: in held_narrow_ or its slot's; -1: not an operand
  std::vector<device::View> narrow_;             // by unit: where those offsets count from, none while not acquired
};

// Gradients of the owned ranges, summed over micro-batches, fsdp and replicas. Every rank's contribution is already scaled by
// 1 / global_batch, so collectives only sum.
class GradientStore {
 public:
  // `accumulation`: micro-batches per step.
  GradientStore(Fabric fabric, int64_t accumulation);

  struct Target {
    device::View view;                           // none: frozen, nobody wants it
    kernels::Write write = kernels::Write::overwrite;
  };
  void begin_step();
  void begin_micro_batch(int64_t m);
  void open(int block);                          // buffers for the block's gradients
  Target gradient(int parameter) const;          // each is written exactly once between open and close
  void close(int block);                         // the block's gradients are complete: exchange them if it is time
  void finish_step();                            // owned() holds the sums afterwards
  device::View owned(int unit) const;            // f32 [layout.owned_count(unit)]

 private:
  struct UnitState {
    bool local = false;                          // accumulates whole, on this rank, until the end of the step
    device::Buffer full;                         // local, or fsdp size 1
    std::vector<device::Buffer> slots;           // owned range; slot 0 holds the sum
    base::TreeSum sum;
    int64_t pool_offset = 0;
  };
  struct Pending {
    int unit, slot;
    comm::Ticket ticket;
  };
  bool scattered(const Unit& unit) const { return unit.strategy.optimizer_sharded && fabric_.layout.fsdp() > 1; }
  device::View full_view(int unit) const;
  device::View slot_view(int unit, int slot) const;
  void exchange(int unit);
  void settle(Pending& pending);
  void settle_all();

  Fabric fabric_;
  int64_t accumulation_, micro_ = 0;
  std::vector<UnitState> units_;
  device::Buffer pool_[2];                       // whole units on their way, two blocks at a time
  int pool_block_[2] = {-1, -1};
  int current_pool_ = 0;
  device::Buffer landing_;                       // level "run": where a reduce-scatter lands before it is added
  std::vector<Pending> pending_;                 // in the order they began
};

}  // namespace shard
