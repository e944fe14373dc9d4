// SPDX-License-Identifier: Apache-2.0
// Replaces cuda.cpp in programs without CUDA (TRAINER_CUDA=OFF): there are no GPUs, and every use
// of one is an error.
#include "base/error.hpp"
#include "device/gpu.hpp"

namespace device {
namespace {
constexpr char kNone[] = "this build has no CUDA back end (cmake -DTRAINER_CUDA=ON)";
[[noreturn]] void none() { base::fail(base::Exit::mesh, "{}", kNone); }
}  // namespace

bool built_with_cuda() { return false; }
Gpus find_gpus() { return {0, kNone}; }
void use_gpu(int) { none(); }
std::string gpu_name() { none(); }
std::string gpu_uuid() { none(); }
size_t gpu_memory_used_bytes() { none(); }
size_t gpu_memory_bytes() { none(); }
int gpu_capability(int) { none(); }
void while_waiting(std::function<void()>) {}

namespace gpu {
void* allocate(size_t) { none(); }
void release(void*) { none(); }
void* allocate_host(size_t) { none(); }
void release_host(void*) { none(); }
void* make_stream() { none(); }
void free_stream(void*) { none(); }
void wait_for_stream(void*) { none(); }
void* make_event() { none(); }
void* make_timing_event() { none(); }
void free_event(void*) { none(); }
void record(void*, void*) { none(); }
void wait(void*, void*) { none(); }
void wait_for_event(void*) { none(); }
bool reached(void*) { none(); }
double seconds_between(void*, void*) { none(); }
void copy(void*, const void*, size_t, void*) { none(); }
void begin_recording(void*) { none(); }
Recorded end_recording(void*) { none(); }
void drop_recording(void*) { none(); }
void launch_graph(void*, void*) { none(); }
void free_graph(void*) { none(); }
}  // namespace gpu

}  // namespace device
