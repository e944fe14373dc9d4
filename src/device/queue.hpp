// SPDX-License-Identifier: Apache-2.0
// An ordered queue of work on a device, with the cost of each op. On the CPU a queue runs work at
// once; on CUDA it is a stream, and the host runs ahead of it. A queue of kind plan runs nothing:
// ops are checked and counted, and can prepare for a real queue.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "device/host_buffer.hpp"
#include "device/staging.hpp"
#include "device/types.hpp"

namespace device {

const char* name_of(Kind kind);
class Ledger;
class OpTimer;

struct OpCost {
  int64_t calls = 0;
  int64_t flops = 0;
  // memory traffic that the op cannot avoid: operands read once, results written once
  int64_t bytes = 0;
  double seconds = 0;  // 0 under plan
};

// A call of an op, under plan or of a timer. Calls with equal work are equal.
struct PlannedCall {
  int op = 0;
  int64_t flops = 0, bytes = 0;
  auto operator<=>(const PlannedCall&) const = default;
};
using PlannedCalls = std::map<PlannedCall, int64_t>;  // value: number of such calls

class Queue {
 public:
  static constexpr int kMaxOps = 128;

  // `planned_device`: the device that a queue of kind plan represents.
  explicit Queue(Kind kind, int threads = 1, bool fixed_order = false,
                 Kind planned_device = Kind::cpu);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Kind kind() const { return kind_; }
  // Returns the device that runs the work, or would run it under plan.
  Kind device() const { return kind_ == Kind::plan ? planned_device_ : kind_; }
  int threads() const { return threads_; }
  // True if bits must not depend on the thread count (determinism.level = "mesh"). Library GEMMs
  // then run single-threaded on fixed blocks. This program's kernels never depend on the thread
  // count.
  bool fixed_order() const { return fixed_order_; }

  // True if a row of a product does not depend on the number of rows, on CPUs. Evaluations need it,
  // because an example's numbers may not depend on the batch that it is in.
  bool rows_alike() const { return rows_alike_ && device() == Kind::cpu; }
  // Sets rows_alike() within a scope.
  class RowsAlike {
   public:
    explicit RowsAlike(Queue& queue)
        : queue_(queue), before_(std::exchange(queue.rows_alike_, true)) {}
    ~RowsAlike() { queue_.rows_alike_ = before_; }
    RowsAlike(const RowsAlike&) = delete;

   private:
    Queue& queue_;
    bool before_;
  };

  // True if products on GPUs may round f32 operands to tf32 (10 bits of mantissa), for tensor
  // cores. Sums stay f32.
  bool tf32() const { return tf32_; }
  void set_tf32(bool tf32);
  // Sets tf32() within a scope, also if an exception leaves it.
  class Tf32 {
   public:
    Tf32(Queue& queue, bool tf32) : queue_(queue), before_(queue.tf32_) { queue.set_tf32(tf32); }
    ~Tf32() { queue_.tf32_ = before_; }
    Tf32(const Tf32&) = delete;

   private:
    Queue& queue_;
    bool before_;
  };

  // True if ops on a queue of kind plan create what they need on a real queue with equal threads.
  bool prepares() const { return prepares_; }
  void set_prepares(bool prepares) { prepares_ = prepares; }

  // Waits until all work in the queue is done, and throws errors of its kernels. `what` names the
  // reason for the wait in messages (transfers.hpp).
  void synchronize(const char* what = "all work of a queue");
  void* stream() const { return stream_.get(); }  // for kind cuda; see device/cuda.hpp

  // Returns scratch for one op call, 64-byte aligned, in the queue's memory. It is valid until the
  // next call. It only grows, so its size is final after the first step. Ops do not call this under
  // plan.
  void* scratch(size_t bytes);
  void need_scratch(size_t bytes);  // counts scratch under plan
  size_t scratch_bytes() const { return scratch_.bytes; }
  const void* scratch_data() const { return scratch_.memory.get(); }
  // Counts scratch on GPUs as "scratch" from now on.
  void count_scratch(Ledger& ledger) { scratch_.ledger = &ledger; }
  // Returns host scratch for one copy to or from the queue's memory.
  void* host_scratch(int64_t bytes);
  UploadRing& uploads() { return uploads_; }

  void account(int op, int64_t flops, int64_t bytes, double seconds) {
    OpCost& c = costs_.ops[op];
    ++c.calls;
    c.flops += flops;
    c.bytes += bytes;
    c.seconds += seconds;
  }
  // Counts a call under plan, and keeps it apart from calls with other work.
  void account_planned(const PlannedCall& call) {
    account(call.op, call.flops, call.bytes, 0);
    ++costs_.planned[call];
  }
  const PlannedCalls& planned_calls() const { return costs_.planned; }
  // Counts calls that a graph repeats. Their seconds are unknown.
  void account_again(int op, const OpCost& cost) {
    OpCost& c = costs_.ops[size_t(op)];
    c.calls += cost.calls;
    c.flops += cost.flops;
    c.bytes += cost.bytes;
  }
  const std::array<OpCost, kMaxOps>& costs() const { return costs_.ops; }
  // Host cost of launching and recording graphs.
  struct GraphCost {
    int64_t launches = 0, recorded = 0;
    double seconds = 0;
  };
  GraphCost& graph_cost() { return costs_.graphs; }
  void reset_costs() { costs_ = {}; }

  // The last op put into a GPU's queue, for messages.
  const char* op() const { return op_; }
  void set_op(const char* name) { op_ = name; }
  // Measures the ops of a GPU's queue from now on; null: none is measured.
  void set_timer(OpTimer* timer) { timer_ = timer; }
  OpTimer* timer() const { return timer_; }
  // True while work put into a GPU's queue is recorded, not run (graphs.hpp).
  bool recording() const { return recording_; }
  void set_recording(bool recording) { recording_ = recording; }

 private:
  struct Free {
    Kind kind = Kind::cpu;
    void operator()(void* p) const;
  };
  struct FreeStream {
    void operator()(void* stream) const;
  };
  struct Scratch {
    std::unique_ptr<void, Free> memory;
    size_t bytes = 0;
    Ledger* ledger = nullptr;
    HostBuffer host{};
  };
  struct Costs {
    std::array<OpCost, kMaxOps> ops{};
    PlannedCalls planned{};
    GraphCost graphs;
  };
  void grow_scratch(size_t bytes);

  Kind kind_;
  int threads_;
  bool fixed_order_;
  Kind planned_device_;
  bool tf32_ = false;
  bool rows_alike_ = false;
  bool prepares_ = false;
  std::unique_ptr<void, FreeStream> stream_;
  Scratch scratch_;
  UploadRing uploads_;
  Costs costs_;
  const char* op_ = "none";
  bool recording_ = false;
  OpTimer* timer_ = nullptr;
};

}  // namespace device
