// Stands in for what calls cuDNN: attention runs on the CPU, on the memory of the emulated device.
#include "cuda_runtime.h"
#include "kernels/attention.hpp"

namespace kernels {
namespace {
template <class Args>
void run_double(const Args& args, const Queue& queue) {
  cuda_on_cpu::Access access;
  Queue cpu(device::Kind::cpu, 1, queue.fixed_order());
  run_cpu(args, cpu);
}
}  // namespace

void run_cuda(const AttentionForward& args, Queue& queue) { run_double(args, queue); }
void run_cuda(const AttentionBackward& args, Queue& queue) { run_double(args, queue); }

}  // namespace kernels
