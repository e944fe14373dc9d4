// The one way to start a kernel: into the queue's stream, with arguments converted to the kernel's parameters, errors told.
// Everything in .cu files is also compiled for the CPU and run by tests/cuda_on_cpu, so: no <<<>>>, no inline assembly, no
// cooperative groups; what needs a barrier or another thread's register goes through block.cuh.
#pragma once

#include "device/cuda.hpp"
#include "kernels/dispatch.hpp"

namespace kernels {

// Blocks so that each of `count` items has its thread (or each of `count` parts of `per_block` items its block).
inline dim3 blocks_for(int64_t count, int64_t per_block) {
  int64_t blocks = (count + per_block - 1) / per_block;
  CHECK(blocks <= 0x7fffffff, "{} blocks are more than a launch takes", blocks);
  return dim3(unsigned(blocks));
}

// An empty grid is no work and no launch. Dynamic shared memory may exceed 48 KiB.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t dynamic_shared_bytes, Queue& queue, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (dynamic_shared_bytes > 48 * 1024)
    device::check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            int(dynamic_shared_bytes)),
                       "asking for shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block;
  config.dynamicSmemBytes = dynamic_shared_bytes, config.stream = device::stream_of(queue);
  device::check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(args)...), "starting a kernel");
}

}  // namespace kernels
