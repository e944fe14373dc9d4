// SPDX-License-Identifier: Apache-2.0
// Ops, and how they run. One op is one stem: layer_norm.hpp is its contract (a plain struct of
// arguments with shapes in comments, check, cost). cpu/layer_norm.cpp and cuda/layer_norm.cu
// implement it. Ops know views and queues, but no model, rank or configuration.
//
// An op named x has
//   a line in ops.def,
//   x.hpp with the struct of its arguments, check and cost,
//   cpu/x.cpp with run_cpu, and cuda/x.cu with run_cuda,
//   a case in tests/unit/kernels, which runs on both back ends (a coverage test reads ops.def).
// For an op that a step runs for every tensor, one run_cuda serves many tensors (run_all, OpList).
// A launch for each would cost more than its work.
//
// There are three back ends: cpu, cuda and plan. plan only checks and counts, so the code that runs
// a step also finds its memory, FLOPs and traffic. For that, `cuda_scratch` returns the scratch
// that an op needs on CUDA. Ops on CUDA are put into the queue's stream; none waits.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "base/span.hpp"
#include "device/op_timer.hpp"
#include "device/queue.hpp"
#include "device/types.hpp"

namespace kernels {

using device::DType;
using device::Queue;
using device::View;

enum class Op : int {
#define OP(name, Args, group) name,
#include "kernels/ops.def"
#undef OP
  count
};
const char* name_of(Op op);
const base::SpanName& span_name_of(Op op);

enum class OpGroup { model, optimizer };
OpGroup group_of(Op op);

struct Cost {
  int64_t flops = 0;  // useful work; a multiply-add counts as two
  int64_t bytes = 0;  // read and written
};

// A result overwrites memory or is added to it, so no separate pass zeroes gradients.
enum class Write { overwrite, accumulate };

// Each op of ops.def has these functions; its header defines the struct of its arguments. `check`
// refuses wrong shapes for all back ends, `cost` counts the work.
#define OP_CONTRACT(Args)              \
  struct Args;                         \
  inline void check(const Args& args); \
  inline Cost cost(const Args& args);  \
  void run_cpu(const Args& args, Queue& queue);
#define OP(name, Args, group) \
  OP_CONTRACT(Args)           \
  void run_cuda(const Args& args, Queue& queue);
#define OP_TOGETHER(name, Args, group) \
  OP_CONTRACT(Args)                    \
  void run_cuda(std::span<const Args> all, Queue& queue);
#include "kernels/ops.def"
#undef OP
#undef OP_CONTRACT

// True for ops whose run_cuda runs many at a time.
template <class Args>
concept RunsTogether = requires(std::span<const Args> all, Queue& queue) {
  run_cuda(all, queue);
};

// Puts an op into a GPU's queue with `put`. Error messages name the op. If the queue has a timer,
// it measures the op, and `cost` returns the op's work.
template <class CostOf, class Put>
void put_into(Queue& queue, Op op, const CostOf& cost, const Put& put) {
  queue.set_op(name_of(op));
  device::OpTimer* timer = queue.recording() ? nullptr : queue.timer();
  if (timer) timer->begin(queue);
  put();
  if (!timer) return;
  const Cost all = cost();
  timer->end({int(op), all.flops, all.bytes}, queue);
}

// Runs the op that the type of its arguments names.
template <class Args>
void run(const Args& args, Queue& queue) {
  check(args);
  Cost c = cost(args);
  base::TimedSpan span(span_name_of(Args::op), base::SpanKind::op);
  if (queue.kind() == device::Kind::plan) {
    queue.account_planned({int(Args::op), c.flops, c.bytes});
    const bool on_gpu = queue.device() == device::Kind::cuda;
    if constexpr (requires { prepare_cpu(args, queue); })
      if (queue.prepares() && !on_gpu) prepare_cpu(args, queue);
    if constexpr (requires { prepare_cuda(args, queue); })
      if (queue.prepares() && on_gpu) prepare_cuda(args, queue);
    if constexpr (requires { cuda_scratch(args); })
      if (on_gpu) queue.need_scratch(cuda_scratch(args));
    span.end_s(c.flops, c.bytes);
    return;
  }
  if (queue.kind() == device::Kind::cuda) {
    put_into(
        queue, Args::op, [&] { return c; },
        [&] {
          if constexpr (RunsTogether<Args>)
            run_cuda(std::span<const Args>(&args, 1), queue);
          else
            run_cuda(args, queue);
        });
  } else {
    run_cpu(args, queue);
  }
  queue.account(int(Args::op), c.flops, c.bytes, span.end_s(c.flops, c.bytes));
}

// Bytes of scratch, at most, that ops running together share. An op that needs more runs alone. The
// scratch of a product is at least as large.
constexpr size_t kSharedScratch = size_t(32) << 20;

// Calls f(ops, bytes) for each group of consecutive ops that share a scratch of `bytes`.
template <RunsTogether Args, class F>
void for_shared_scratch(std::span<const Args> all, const F& f) {
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    size_t bytes = cuda_scratch(all[end++]);
    while (end < all.size() && bytes + cuda_scratch(all[end]) <= kSharedScratch)
      bytes += cuda_scratch(all[end++]);
    f(all.subspan(begin, end - begin), bytes);
  }
}

// Runs ops that are independent: none reads or writes the results of another. On GPUs one launch
// serves many tensors. Bits and counts are the same as from calling `run` for each op.
template <RunsTogether Args>
void run_all(std::span<const Args> all, Queue& queue) {
  if (all.empty()) return;
  if (queue.kind() != device::Kind::cuda) {
    for (const Args& args : all) run(args, queue);
    if constexpr (requires { cuda_scratch(all[0]); })
      if (queue.device() == device::Kind::cuda)
        for_shared_scratch(all, [&](auto, size_t bytes) { queue.need_scratch(bytes); });
    return;
  }
  for (const Args& args : all) check(args);
  base::TimedSpan span(span_name_of(Args::op), base::SpanKind::op);
  auto work = [&] {
    Cost sum;
    for (const Args& args : all) {
      const Cost c = cost(args);
      sum.flops += c.flops;
      sum.bytes += c.bytes;
    }
    return sum;
  };
  put_into(queue, Args::op, work, [&] { run_cuda(all, queue); });
  double seconds = span.end_s();
  for (const Args& args : all) {
    const Cost c = cost(args);
    queue.account(int(Args::op), c.flops, c.bytes, std::exchange(seconds, 0));
  }
}

// Collects ops of one kind and runs them together. The list keeps its memory, so later steps
// allocate nothing.
template <RunsTogether Args>
class OpList {
 public:
  void add(const Args& args) { all_.push_back(args); }
  void run(Queue& queue) {
    run_all(std::span<const Args>(all_), queue);
    all_.clear();
  }

 private:
  std::vector<Args> all_;
};

}  // namespace kernels
