// SPDX-License-Identifier: Apache-2.0
// Emulates CUDA's errors and its rules for launches. An error that a call returns stays the
// thread's last error until cudaGetLastError clears it. Until then libraries find this error and
// report it as their own. An error of the GPU is never cleared.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "cuda_runtime.h"

namespace cuda_on_cpu {
namespace {

constexpr size_t kUsualShared = 48 * 1024, kMostShared = 227 * 1024;

thread_local cudaError_t last = cudaSuccess;
cudaError_t of_gpu = cudaSuccess;

// Bytes of dynamic shared memory that the program has asked for, by kernel.
std::map<const void*, size_t>& asked() {
  static std::map<const void*, size_t> all;
  return all;
}

size_t most_dynamic(const void* kernel) {
  auto it = asked().find(kernel);
  return it == asked().end() ? kUsualShared - std::min(kUsualShared, static_shared_bytes(kernel))
                             : it->second;
}

}  // namespace

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last = error;
  return error;
}
cudaError_t last_error() { return of_gpu != cudaSuccess ? of_gpu : last; }
cudaError_t broken() { return report(of_gpu); }
void break_gpu(cudaError_t error) { last = of_gpu = error; }

cudaError_t launch_error(const cudaLaunchConfig_t& c, const void* kernel) {
  const dim3 &grid = c.gridDim, &block = c.blockDim;
  const size_t threads = size_t(block.x) * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535 || threads == 0 || threads > 1024 || block.z > 64)
    return cudaErrorInvalidConfiguration;
  return c.dynamicSmemBytes > most_dynamic(kernel) ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (broken() != cudaSuccess) return broken();
  if (value < 0 || size_t(value) + static_shared_bytes(kernel) > kMostShared)
    return report(cudaErrorInvalidValue);
  asked()[kernel] = size_t(value);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error();
  last = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "an error";
  }
}
