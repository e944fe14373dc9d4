// SPDX-License-Identifier: Apache-2.0
// GPUs as the rest of the program sees them, without CUDA's types. cuda.cpp implements this header,
// or no_cuda.cpp in programs without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace device {

bool built_with_cuda();

struct Gpus {
  int count = 0;
  std::string none_because;  // reason if there is none: no CUDA in this build, no driver, ...
};
// Counts the GPUs. Starts neither a driver nor a context if there is none.
Gpus find_gpus();

// Selects the GPU of all queues and buffers of kind cuda that this process creates later. 0 <=
// index < count.
void use_gpu(int index);
std::string gpu_name();          // name of the selected GPU, from the driver
std::string gpu_uuid();          // unique "GPU-..." of the selected GPU
size_t gpu_memory_used_bytes();  // used by all programs on the selected GPU
size_t gpu_memory_bytes();       // all memory of the selected GPU
int gpu_capability(int index);   // 90 means compute capability 9.0

// Sets a function that is called repeatedly while this thread waits for a GPU. The wait ends if the
// function throws. Without that, a failed exchange between GPUs would block forever. Empty: no
// function is called.
void while_waiting(std::function<void()> watch);

// The primitives of Queue, Event, Buffer and the copies. Device memory is 256-byte aligned.
namespace gpu {
void* allocate(size_t bytes);  // zero-filled; null if out of memory
void release(void* memory);
void* allocate_host(size_t bytes);  // pinned, so copies run without the host; null if out of memory
void release_host(void* memory);
void* make_stream();
void free_stream(void* stream);
void wait_for_stream(void* stream);
void* make_event();
void* make_timing_event();  // also keeps the time at which it is reached
void free_event(void* event);
void record(void* event, void* stream);
void wait(void* event, void* stream);  // later work of `stream` starts after the event
void wait_for_event(void* event);      // the host waits
bool reached(void* event);             // true if the work before the event is done
// Both are timing events that were reached.
double seconds_between(void* begin, void* end);
// Copies between any two of host and device.
void copy(void* to, const void* from, size_t bytes, void* stream);
// From begin to end (or drop) the work that this thread puts into the stream is recorded, not run.
// A call that cannot be recorded is an error, at once or at the end.
struct Recorded {
  void* graph;    // for launch_graph
  int64_t nodes;  // kernels and copies in the graph
};
void begin_recording(void* stream);
Recorded end_recording(void* stream);
void drop_recording(void* stream);  // after an error
void launch_graph(void* graph, void* stream);
void free_graph(void* graph);  // a running graph ends first
}  // namespace gpu

}  // namespace device
