// Where work runs: a device and an ordered queue on it, with what each op cost. On the CPU a queue runs at once; on CUDA it
// will be a stream. The `plan` kind runs nothing: ops are checked and counted only, or prepared for a real queue as well.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/types.hpp"

namespace device {

enum class Kind { cpu, cuda, plan };
const char* name_of(Kind kind);

struct OpCost {
  int64_t calls = 0;
  int64_t flops = 0;
  int64_t bytes = 0;   // memory traffic the op cannot avoid: operands read once, results written once
  double seconds = 0;  // 0 under plan
};

class Queue {
 public:
  static constexpr int kMaxOps = 96;

  explicit Queue(Kind kind, int threads = 1, bool fixed_order = false);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Kind kind() const { return kind_; }
  int threads() const { return threads_; }
  // Bits may not depend on the thread count (determinism.level = "mesh"): library GEMMs then run single-threaded on fixed
  // blocks. Our own kernels never depend on it.
  bool fixed_order() const { return fixed_order_; }

  // On paper: ops make what they will need on a real queue of as many threads.
  bool prepares() const { return prepares_; }
  void set_prepares(bool prepares) { prepares_ = prepares; }

  // Scratch for one op call, 64-byte aligned; valid until the next call of scratch. Grows only, so it settles after the
  // first step. Never called under plan by the ops themselves.
  void* scratch(size_t bytes);
  size_t scratch_bytes() const { return scratch_bytes_; }

  void account(int op, int64_t flops, int64_t bytes, double seconds) {
    OpCost& c = costs_[op];
    ++c.calls, c.flops += flops, c.bytes += bytes, c.seconds += seconds;
  }
  const std::array<OpCost, kMaxOps>& costs() const { return costs_; }
  void reset_costs() { costs_ = {}; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  Kind kind_;
  int threads_;
  bool fixed_order_;
  bool prepares_ = false;
  std::unique_ptr<void, Free> scratch_;
  size_t scratch_bytes_ = 0;
  std::array<OpCost, kMaxOps> costs_{};
};

// A point in a queue that another queue (or the host) can wait for. On the CPU all work before it is done already.
class Event {
 public:
  void record(Queue&) {}
  void wait(Queue&) const {}
};

}  // namespace device
