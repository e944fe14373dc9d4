// SPDX-License-Identifier: Apache-2.0
// GPUs as the rest of the program sees them: how many there are, which one this process uses. No
// CUDA type is named here; cuda.cpp answers, or no_cuda.cpp in builds without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace device {

struct Gpus {
  int count = 0;
  std::string none_because;  // when there is none: no CUDA in this build, no driver, ...
};
// Starts neither a driver nor a context where there is no GPU.
Gpus find_gpus();

// All queues and buffers of kind cuda that this process makes from now on are on that GPU, 0 <=
// index < count.
void use_gpu(int index);
std::string gpu_name();          // of the one in use, as the driver says it
std::string gpu_uuid();          // of the one in use: "GPU-...", no other GPU of the world has it
size_t gpu_memory_bytes();       // of the one in use, all of it
size_t gpu_memory_used_bytes();  // of the one in use, by all programs
int gpu_multiprocessors();
int gpu_capability(int index);  // 90 for compute capability 9.0

// Called again and again while this thread waits for a GPU, until the wait is over; what it throws
// ends the wait. Communication between GPUs that failed would be waited for without end otherwise.
// Empty: nobody is called.
void while_waiting(std::function<void()> watch);

// What Queue, Event, Buffer and the copies are made of. Device memory is 256-byte aligned.
namespace gpu {
void* allocate(size_t bytes);  // zero-filled; null: out of memory
void release(void* memory);
void* allocate_host(size_t bytes);  // pinned: copies of it need no host; null: out of memory
void release_host(void* memory);
void* make_stream();
void free_stream(void* stream);
void wait_for_stream(void* stream);
void* make_event();
void free_event(void* event);
void record(void* event, void* stream);
void wait(void* event, void* stream);  // work put into `stream` from now on starts after the event
void wait_for_event(void* event);      // the host waits
bool reached(void* event);             // is what was recorded done?
// between any two of host and device
void copy(void* to, const void* from, size_t bytes, void* stream);
// From begin to end (or drop) what this thread puts into the stream is not run but recorded. One
// that takes no recording, and a call in between that none takes, is an error there or at the end.
struct Recorded {
  void* graph;    // to be launched
  int64_t nodes;  // kernels and copies in it
};
void begin_recording(void* stream);
Recorded end_recording(void* stream);
void drop_recording(void* stream);  // after an error
void launch_graph(void* graph, void* stream);
void free_graph(void* graph);  // one under way ends first
}  // namespace gpu

}  // namespace device
