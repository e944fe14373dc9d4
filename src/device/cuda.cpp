#include "device/cuda.hpp"

#include "device/gpu.hpp"

namespace device {

cudaStream_t stream_of(const Queue& queue) {
  CHECK(queue.kind() == Kind::cuda, "a queue of kind {} has no stream", name_of(queue.kind()));
  return static_cast<cudaStream_t>(queue.stream());
}

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  base::fail(base::Exit::mesh, "CUDA: {}: {} ({}); the cause may be work that was started earlier: CUDA_LAUNCH_BLOCKING=1 tells which",
             what, cudaGetErrorString(status), cudaGetErrorName(status));
}

Gpus find_gpus() {
  int count = 0;  // left untouched by some errors
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return {count, ""};
  if (status == cudaSuccess || status == cudaErrorNoDevice) return {0, "no GPU is visible (CUDA_VISIBLE_DEVICES?)"};
  if (status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary)
    return {0, "no NVIDIA driver, or one that is too old for CUDA " + std::to_string(CUDART_VERSION / 1000) + "." +
                   std::to_string(CUDART_VERSION % 1000 / 10)};
  return {0, cudaGetErrorString(status)};
}

void use_gpu(int index) { check_cuda(cudaSetDevice(index), "choosing a GPU"); }

namespace {
cudaDeviceProp properties() {
  int index = 0;
  check_cuda(cudaGetDevice(&index), "asking for the GPU in use");
  cudaDeviceProp out{};
  check_cuda(cudaGetDeviceProperties(&out, index), "asking for the GPU's properties");
  return out;
}
}  // namespace

std::string gpu_name() { return properties().name; }
size_t gpu_memory_bytes() { return properties().totalGlobalMem; }
int gpu_multiprocessors() {
  static const int count = properties().multiProcessorCount;
  return count;
}

namespace gpu {

void* allocate(size_t bytes) {
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told by the caller, who knows for what
    return nullptr;
  }
  check_cuda(status, "allocating memory");
  check_cuda(cudaMemset(memory, 0, bytes), "zeroing memory");
  check_cuda(cudaStreamSynchronize(nullptr), "zeroing memory");  // queues do not wait for the default stream
  return memory;
}

// At the end of a process the driver may be gone first: then there is nothing to give back.
void release(void* memory) { cudaFree(memory); }

void* allocate_host(size_t bytes) {
  void* memory = nullptr;
  cudaError_t status = cudaMallocHost(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(status, "allocating pinned host memory");
  return memory;
}
void release_host(void* memory) { cudaFreeHost(memory); }

void* make_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return stream;
}
void free_stream(void* stream) { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }
void wait_for_stream(void* stream) {
  check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for a stream");
}

void* make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return event;
}
void free_event(void* event) { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
void record(void* event, void* stream) {
  check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)), "recording an event");
}
void wait(void* event, void* stream) {
  check_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
             "letting a stream wait");
}
void wait_for_event(void* event) {
  check_cuda(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "waiting for an event");
}

void copy(void* to, const void* from, size_t bytes, void* stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)), "copying");
}

}  // namespace gpu
}  // namespace device
