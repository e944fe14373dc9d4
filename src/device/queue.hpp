// SPDX-License-Identifier: Apache-2.0
// Where work runs: a device and an ordered queue on it, with what each op cost. On the CPU a queue
// runs at once; on CUDA it is a stream, and the host runs ahead of it. The `plan` kind runs
// nothing: ops are checked and counted only, or prepared for a real queue as well.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/host_buffer.hpp"
#include "device/staging.hpp"
#include "device/types.hpp"

namespace device {

const char* name_of(Kind kind);
class Ledger;

struct OpCost {
  int64_t calls = 0;
  int64_t flops = 0;
  // memory traffic the op cannot avoid: operands read once, results written once
  int64_t bytes = 0;
  double seconds = 0;  // 0 under plan
};

class Queue {
 public:
  static constexpr int kMaxOps = 96;

  // `paper_of`: what a queue of kind plan stands for.
  explicit Queue(Kind kind, int threads = 1, bool fixed_order = false, Kind paper_of = Kind::cpu);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Kind kind() const { return kind_; }
  // where the work runs, or would
  Kind device() const { return kind_ == Kind::plan ? paper_of_ : kind_; }
  int threads() const { return threads_; }
  // Bits may not depend on the thread count (determinism.level = "mesh"): library GEMMs then run
  // single-threaded on fixed blocks. Our own kernels never depend on it.
  bool fixed_order() const { return fixed_order_; }

  // GPUs: products of f32 operands may round these to tf32 (10 bits of mantissa), for tensor cores.
  // Sums stay f32.
  bool tf32() const { return tf32_; }
  void set_tf32(bool tf32);

  // On paper: ops make what they will need on a real queue of as many threads.
  bool prepares() const { return prepares_; }
  void set_prepares(bool prepares) { prepares_ = prepares; }

  // Returns when all work put into the queue so far is done; errors of kernels come up here. `what`
  // the host waits for, for messages (transfers.hpp).
  void synchronize(const char* what = "all work of a queue");
  void* stream() const { return stream_.get(); }  // kind cuda: see device/cuda.hpp

  // Scratch for one op call, 64-byte aligned, in the queue's memory; valid until the next call of
  // scratch. Grows only, so it settles after the first step. Never called under plan by the ops
  // themselves.
  void* scratch(size_t bytes);
  void need_scratch(size_t bytes);  // on paper
  size_t scratch_bytes() const { return scratch_bytes_; }
  const void* scratch_data() const { return scratch_.get(); }
  // On GPUs it is counted as "scratch" from now on.
  void count_scratch(Ledger& ledger) { ledger_ = &ledger; }
  // The same on the host, for one copy to or from the queue's memory.
  void* host_scratch(int64_t bytes);
  UploadRing& uploads() { return uploads_; }

  void account(int op, int64_t flops, int64_t bytes, double seconds) {
    OpCost& c = costs_[op];
    ++c.calls;
    c.flops += flops;
    c.bytes += bytes;
    c.seconds += seconds;
  }
  // The same calls once more, by a graph: what each takes is not known.
  void account_again(int op, const OpCost& cost) {
    OpCost& c = costs_[size_t(op)];
    c.calls += cost.calls;
    c.flops += cost.flops;
    c.bytes += cost.bytes;
  }
  const std::array<OpCost, kMaxOps>& costs() const { return costs_; }
  // What graphs cost the host, who puts no op of theirs in.
  struct GraphCost {
    int64_t launches = 0, recorded = 0;
    double seconds = 0;
  };
  GraphCost& graph_cost() { return graph_cost_; }
  void reset_costs() {
    costs_ = {};
    graph_cost_ = {};
  }

  // GPUs: the op that was put in last, for messages.
  const char* op() const { return op_; }
  void set_op(const char* name) { op_ = name; }
  // GPUs: what is put in is recorded, not run (graphs.hpp).
  bool recording() const { return recording_; }
  void set_recording(bool recording) { recording_ = recording; }

 private:
  struct Free {
    Kind kind = Kind::cpu;
    void operator()(void* p) const;
  };
  void grow_scratch(size_t bytes);
  struct FreeStream {
    void operator()(void* stream) const;
  };
  Kind kind_;
  int threads_;
  bool fixed_order_;
  Kind paper_of_;
  bool tf32_ = false;
  bool prepares_ = false;
  std::unique_ptr<void, FreeStream> stream_;
  std::unique_ptr<void, Free> scratch_;
  size_t scratch_bytes_ = 0;
  Ledger* ledger_ = nullptr;
  HostBuffer host_scratch_;
  UploadRing uploads_;
  std::array<OpCost, kMaxOps> costs_{};
  GraphCost graph_cost_;
  const char* op_ = "none";
  bool recording_ = false;
};

}  // namespace device
