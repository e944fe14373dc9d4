// SPDX-License-Identifier: Apache-2.0
// The one way to start a kernel: in the queue's stream, with arguments converted to the kernel's
// parameters, and with errors reported. tests/cuda_on_cpu also compiles all .cu files for the CPU
// and runs them. They have no <<<>>>, no inline assembly and no cooperative groups; barriers and
// registers of other threads go through block.cuh.
#pragma once

#include "device/cuda.hpp"
#include "kernels/dispatch.hpp"

namespace kernels {

// Returns the grid for `count` items, `per_block` of them in each block.
inline dim3 blocks_for(int64_t count, int64_t per_block) {
  int64_t blocks = (count + per_block - 1) / per_block;
  CHECK(blocks <= 0x7fffffff, "{} blocks are more than a launch takes", blocks);
  return dim3(unsigned(blocks));
}

// Starts nothing for an empty grid. Dynamic shared memory may exceed 48 KiB.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t dynamic_shared_bytes,
            Queue& queue, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (dynamic_shared_bytes > 48 * 1024)
    device::check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            int(dynamic_shared_bytes)),
                       "asking for shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = dynamic_shared_bytes;
  config.stream = device::stream_of(queue);
  device::check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(args)...), "starting a kernel");
}

}  // namespace kernels
