// SPDX-License-Identifier: Apache-2.0
// The only way to start a kernel. `launch` uses the queue's stream, converts arguments to the
// kernel's parameters, and reports errors. tests/cuda_on_cpu also compiles all .cu files for the
// CPU and runs them. For that, they use no <<<>>>, no inline assembly and no cooperative groups.
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

// Kernels may use 48 KiB of shared memory without asking. Their variables are part of it, and the
// host does not know how large they are.
constexpr size_t kSharedWithoutAsking = 32 * 1024;

// Starts a kernel, unless the grid is empty. Dynamic shared memory may exceed 48 KiB.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t dynamic_shared_bytes,
            Queue& queue, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (dynamic_shared_bytes > kSharedWithoutAsking)
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
