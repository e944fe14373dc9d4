// SPDX-License-Identifier: Apache-2.0
// Declares CUDA on the CPU for g++: the parts of CUDA that the .cu files and src/device/cuda.cpp
// use. This header precedes CUDA's own in the include path. fibers.cpp runs the kernels, one fiber
// per CUDA thread. Parts of CUDA that no source uses are missing.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "arithmetic.hpp"

#define CUDA_ON_CPU

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
// Only one block runs at a time. The tag is in the symbols' names, where shared_memory.cpp finds
// it.
#define __shared__ static __attribute__((abi_tag("cuda_shared")))
#define __launch_bounds__(...)
#define __grid_constant__ \
  &  // after the type of an argument: all threads read the launch's copy of it

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace cuda_on_cpu {

struct Place {
  dim3 thread, block, block_size, grid;
};
extern Place place;       // of the running CUDA thread
extern int64_t launches;  // launches of kernels until now
void* dynamic_shared();   // the launch's bytes, then a forbidden page
void wait_for_block(const char* file, int line);
void wait_for_warp(const char* file, int line);
// Publishes 8 bytes to the other lanes of the warp, waits for all lanes, and returns the value of
// `lane`.
uint64_t exchange(uint64_t value, int lane, const char* file, int line);
int lane();

void launch(dim3 grid, dim3 block, size_t dynamic_shared_bytes, const void* kernel,
            const std::function<void()>& thread);
// Bytes of the __shared__ variables of a kernel.
size_t static_shared_bytes(const void* kernel);

// Allows host code to touch device memory while it lives, for the emulated libraries.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
};

template <class T>
T shuffle(T value, int from, const char* file, int line) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(bits, from, file, line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace cuda_on_cpu

inline const dim3& threadIdx = cuda_on_cpu::place.thread;
inline const dim3& blockIdx = cuda_on_cpu::place.block;
inline const dim3& blockDim = cuda_on_cpu::place.block_size;
inline const dim3& gridDim = cuda_on_cpu::place.grid;
#define __syncthreads() ::cuda_on_cpu::wait_for_block(__FILE__, __LINE__)
#define __syncwarp() ::cuda_on_cpu::wait_for_warp(__FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, other) \
  ::cuda_on_cpu::shuffle(value, ::cuda_on_cpu::lane() ^ (other), __FILE__, __LINE__ + 0 * int(mask))
#define __shfl_sync(mask, value, from) \
  ::cuda_on_cpu::shuffle(value, from, __FILE__, __LINE__ + 0 * int(mask))

template <class T>
T __ldg(const T* p) {
  return *p;
}
namespace cuda_on_cpu {
// Returns a result that the compiler fuses with no other operation.
template <class T>
T alone(T x) {
#ifdef __x86_64__
  asm("" : "+x"(x));
#else
  asm("" : "+w"(x));
#endif
  return x;
}
}  // namespace cuda_on_cpu
inline float __fadd_rn(float x, float y) {
  return cuda_on_cpu::alone(cuda_on_cpu::alone(x) + cuda_on_cpu::alone(y));
}
inline float __fmul_rn(float x, float y) { return cuda_on_cpu::alone(x * y); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
using std::max;
using std::min;

// The run time.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorStreamCaptureImplicit = 906,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908,
};
#define CUDART_VERSION 13000
using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;
using cudaGraph_t = struct EmulatedGraph*;
using cudaGraphExec_t = struct EmulatedGraphExec*;
using cudaGraphNode_t = struct EmulatedGraphNode*;
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int multiProcessorCount;
  int major, minor;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

const char* cudaGetErrorString(cudaError_t);
const char* cudaGetErrorName(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* index);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int index);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** out, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** out, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value);
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* out);
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);

namespace cuda_on_cpu {
// Functions of streams.cpp. `busy` is true if work in the stream waits. `submit` runs work after
// the stream's earlier work. In a stream that captures, it keeps the work for the graph and returns
// the error of an ended capture. `submit_waiting` adds work that may need several tries: it returns
// true when it is done, and never runs at once. `wait` returns when the stream is empty.
bool busy(cudaStream_t);
cudaError_t submit(cudaStream_t, std::function<void()> work);
void submit_waiting(cudaStream_t, std::function<bool()> work);
void wait(cudaStream_t);
void wait_for_all();
void spend(double seconds);  // adds to the time that events measure
bool on_device(const void* address);
int graphs_launched();

// Functions of errors.cpp. `report` keeps an error for cudaGetLastError, and returns it. Once the
// GPU is broken, for example by an illegal address, every call returns the error until the process
// ends.
cudaError_t report(cudaError_t);
cudaError_t last_error();
void break_gpu(cudaError_t);  // cudaSuccess repairs it
cudaError_t broken();
// Returns the error of a launch that no GPU takes.
cudaError_t launch_error(const cudaLaunchConfig_t&, const void* kernel);
}  // namespace cuda_on_cpu

template <class... Parameters, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Args&&... args) {
  static_assert((sizeof(std::remove_cvref_t<Parameters>) + ... + 0) <= 4096,
                "more arguments than every GPU takes");
  const auto* address = reinterpret_cast<const void*>(kernel);
  if (cudaError_t refused = cuda_on_cpu::launch_error(*config, address); refused != cudaSuccess)
    return cuda_on_cpu::report(refused);
  return cuda_on_cpu::submit(config->stream, [c = *config, kernel, ... args = Parameters(args)] {
    cuda_on_cpu::launch(c.gridDim, c.blockDim, c.dynamicSmemBytes,
                        reinterpret_cast<const void*>(kernel), [&] { kernel(args...); });
  });
}
