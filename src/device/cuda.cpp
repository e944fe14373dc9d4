// SPDX-License-Identifier: Apache-2.0
#include "device/cuda.hpp"

#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/clock.hpp"
#include "base/span.hpp"
#include "device/gpu.hpp"

namespace device {

cudaStream_t stream_of(const Queue& queue) {
  CHECK(queue.kind() == Kind::cuda, "a queue of kind {} has no stream", name_of(queue.kind()));
  return static_cast<cudaStream_t>(queue.stream());
}

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  base::fail(base::Exit::mesh,
             "CUDA: {}: {} ({}); the cause may be work that was started earlier: "
             "CUDA_LAUNCH_BLOCKING=1 shows which",
             what, cudaGetErrorString(status), cudaGetErrorName(status));
}

bool built_with_cuda() { return true; }

Gpus find_gpus() {
  int count = 0;  // some errors leave it unchanged
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return {count, ""};
  if (status == cudaSuccess || status == cudaErrorNoDevice)
    return {0, "no GPU is visible (CUDA_VISIBLE_DEVICES?)"};
  if (status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary)
    return {0, fmt::format("no NVIDIA driver, or one that is too old for CUDA {}.{}",
                           CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10)};
  return {0, cudaGetErrorString(status)};
}

void use_gpu(int index) { check_cuda(cudaSetDevice(index), "choosing a GPU"); }

namespace {
cudaDeviceProp properties(int index) {
  cudaDeviceProp out{};
  check_cuda(cudaGetDeviceProperties(&out, index), "asking for the GPU's properties");
  return out;
}
cudaDeviceProp properties() {
  int index = 0;
  check_cuda(cudaGetDevice(&index), "asking for the GPU in use");
  return properties(index);
}
}  // namespace

std::string gpu_name() { return properties().name; }
std::string gpu_uuid() {
  std::string text = "GPU-";
  for (char byte : properties().uuid.bytes) text += fmt::format("{:02x}", uint8_t(byte));
  return text;
}
namespace {
struct GpuMemory {
  size_t free = 0, total = 0;
};
GpuMemory gpu_memory() {
  GpuMemory memory;
  check_cuda(cudaMemGetInfo(&memory.free, &memory.total), "asking for free memory");
  return memory;
}
}  // namespace

size_t gpu_memory_used_bytes() {
  const GpuMemory memory = gpu_memory();
  return memory.total - memory.free;
}
size_t gpu_memory_bytes() { return gpu_memory().total; }

int gpu_capability(int index) {
  const cudaDeviceProp gpu = properties(index);
  return 10 * gpu.major + gpu.minor;
}

namespace {
std::function<void()> watch;

// Polls the GPU until it is done and calls `watch` between polls. Polls without a pause at first,
// because most waits are short.
template <class Ask>
void wait_until_done(Ask ask, const char* what) {
  constexpr double kShort_s = 1e-3;
  constexpr useconds_t kPause_us = 50;
  const double begin = base::now_s();
  for (cudaError_t status = ask(); status != cudaSuccess; status = ask()) {
    if (status != cudaErrorNotReady) check_cuda(status, what);
    cudaGetLastError();  // clears it, else a library takes it for an error of its own
    watch();
    if (base::now_s() - begin > kShort_s)
      usleep(kPause_us);
    else
      std::this_thread::yield();
  }
}
}  // namespace

void while_waiting(std::function<void()> called) { watch = std::move(called); }

namespace {
// Shows spans to GPU profilers (Nsight Systems). Without one this costs next to nothing.
void push_range(std::string_view name, int64_t number, base::SpanKind) {
  char text[64];
  if (number == base::Span::kNoNumber)
    *fmt::format_to_n(text, sizeof text - 1, "{}", name).out = '\0';
  else
    *fmt::format_to_n(text, sizeof text - 1, "{} {}", name, number).out = '\0';
  nvtxRangePushA(text);
}
constexpr base::SpanProfiler kNvtx = {
    push_range, [](base::SpanKind, int64_t, int64_t) { nvtxRangePop(); }, nullptr, nullptr};
}  // namespace

namespace gpu {

void* allocate(size_t bytes) {
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error; the caller reports it with the buffer's purpose
    return nullptr;
  }
  check_cuda(status, "allocating memory");
  check_cuda(cudaMemset(memory, 0, bytes), "zeroing memory");
  // The host waits, because queues do not wait for the default stream.
  check_cuda(cudaStreamSynchronize(nullptr), "zeroing memory");
  return memory;
}

// Ignores errors: at process exit the driver may end first, and then nothing is left to free.
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
  base::set_span_profiler(&kNvtx);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return stream;
}
void free_stream(void* stream) { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }
void wait_for_stream(void* stream) {
  auto* s = static_cast<cudaStream_t>(stream);
  if (watch) return wait_until_done([&] { return cudaStreamQuery(s); }, "waiting for a stream");
  check_cuda(cudaStreamSynchronize(s), "waiting for a stream");
}

void* make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return event;
}
void* make_timing_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, 0), "making an event that keeps its time");
  return event;
}
void free_event(void* event) { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
void record(void* event, void* stream) {
  check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)),
             "recording an event");
}
void wait(void* event, void* stream) {
  check_cuda(
      cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
      "letting a stream wait");
}
void wait_for_event(void* event) {
  auto* e = static_cast<cudaEvent_t>(event);
  if (watch) return wait_until_done([&] { return cudaEventQuery(e); }, "waiting for an event");
  check_cuda(cudaEventSynchronize(e), "waiting for an event");
}
bool reached(void* event) {
  cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (status == cudaErrorNotReady)
    cudaGetLastError();  // clears it, else a library takes it for an error of its own
  else
    check_cuda(status, "asking for an event");
  return status == cudaSuccess;
}
double seconds_between(void* begin, void* end) {
  float ms = 0;
  check_cuda(
      cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(begin), static_cast<cudaEvent_t>(end)),
      "asking for the time between events");
  return 1e-3 * double(ms);
}

void copy(void* to, const void* from, size_t bytes, void* stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
             "copying");
}

void begin_recording(void* stream) {
  // The capture is thread local, so other threads may allocate and copy.
  check_cuda(
      cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal),
      "beginning to record a graph");
}
Recorded end_recording(void* stream) {
  cudaGraph_t recorded = nullptr;
  check_cuda(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &recorded),
             "ending the recording of a graph");
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, cudaError_t (*)(cudaGraph_t)> owner(
      recorded, cudaGraphDestroy);
  size_t nodes = 0;
  check_cuda(cudaGraphGetNodes(recorded, nullptr, &nodes), "asking for a graph's nodes");
  cudaGraphExec_t graph = nullptr;
  check_cuda(cudaGraphInstantiate(&graph, recorded, 0), "making a recorded graph ready");
  return {graph, int64_t(nodes)};
}
void drop_recording(void* stream) {
  cudaGraph_t recorded = nullptr;
  if (cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &recorded) == cudaSuccess && recorded)
    cudaGraphDestroy(recorded);
  cudaGetLastError();  // clears the error that ended the recording; its finder has reported it
}
void launch_graph(void* graph, void* stream) {
  check_cuda(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream)),
      "starting a graph");
}
void free_graph(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

}  // namespace gpu
}  // namespace device
