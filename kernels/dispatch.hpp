// Ops. One op = one stem: `layer_norm.hpp` is the contract (plain argument struct with shapes in comments, check, cost),
// `.cpp` the CPU implementation, `.cu` the CUDA one. kernels knows views and queues; no model, no rank, no configuration.
//
// To add an op: a line in ops.def, a header with the struct and the declarations `check`, `cost`, `run_cpu`, `run_cuda`, a
// .cpp and a .cu, and a case in tests/unit/kernels (a coverage test reads ops.def), which runs on both back ends.
//
// Three back ends: cpu, cuda and plan, which only checks and counts, so that memory, FLOPs and traffic of a run are found by the code that
// runs it; for that, ops say what scratch they take on CUDA (`cuda_scratch`). An op there is put into the queue's stream; none waits.
#pragma once

#include "base/clock.hpp"
#include "device/queue.hpp"
#include "device/range.hpp"
#include "device/types.hpp"

namespace kernels {

using device::DType;
using device::Queue;
using device::View;

enum class Op : int {
#define OP(name, Args) name,
#include "kernels/ops.def"
#undef OP
  count
};
const char* name_of(Op op);

struct Cost {
  int64_t flops = 0;  // multiply-adds count two; only what is proportional to the useful work
  int64_t bytes = 0;
};

// Results are written or added to: there is no separate pass that zeroes gradients.
enum class Write { overwrite, accumulate };

// Runs an op: the argument struct names the op, `check` refuses wrong shapes for every back end.
template <class Args>
void run(const Args& args, Queue& queue) {
  check(args);
  Cost c = cost(args);
  if (queue.kind() == device::Kind::plan) {
    queue.account(int(Args::op), c.flops, c.bytes, 0);
    const bool on_gpu = queue.device() == device::Kind::cuda;
    if constexpr (requires { prepare_cpu(args, queue); })
      if (queue.prepares() && !on_gpu) prepare_cpu(args, queue);
    if constexpr (requires { prepare_cuda(args, queue); })
      if (queue.prepares() && on_gpu) prepare_cuda(args, queue);
    if constexpr (requires { cuda_scratch(args); })
      if (on_gpu) queue.need_scratch(cuda_scratch(args));
    return;
  }
  double begin = base::now_s();
  if (queue.kind() == device::Kind::cuda) {
    device::Range range(name_of(Args::op));
    queue.set_op(name_of(Args::op));
    run_cuda(args, queue);
  } else {
    run_cpu(args, queue);
  }
  queue.account(int(Args::op), c.flops, c.bytes, base::now_s() - begin);
}

}  // namespace kernels
