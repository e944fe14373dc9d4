// SPDX-License-Identifier: Apache-2.0
// Emulates the CUDA run time. Device memory is host memory that host code may not touch. A touch by
// the host ends the program with a message, and so does a kernel that writes beyond its memory.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "cuda_runtime.h"
#include "memory.hpp"
#include "streams.hpp"

namespace cuda_on_cpu {
namespace {

constexpr size_t kPage = 4096;
// size of workspaces: their pages stay untouched until a kernel writes them
constexpr size_t kLarge = 1 << 20;

std::map<void*, std::unique_ptr<GuardedMemory>>& allocations() {
  // never destroyed, because destructors at exit still free memory
  static auto* all = new std::map<void*, std::unique_ptr<GuardedMemory>>;
  return *all;
}
int open_count = 0;

// The program's own handlers of faults and traps.
struct sigaction of_faults {};
struct sigaction of_traps {};

// A kernel's first touch of an allocation opens it. A launch touches few of them, so this takes
// less time than opening and closing all.
void on_fault(int signal, siginfo_t* info, void*) {
  for (auto& [data, memory] : allocations())
    if (memory->holds(info->si_addr)) {
      if (open_count && !memory->is_open() && memory->may_open(info->si_addr))
        return memory->open(true);
      const char* text = open_count
                             ? "cuda_on_cpu: a kernel touched memory outside of its allocation\n"
                             : "cuda_on_cpu: host code touched device memory\n";
      [[maybe_unused]] ssize_t written = ::write(2, text, std::strlen(text));
    }
  sigaction(signal, &of_faults, nullptr);  // the faulting instruction runs again, for the program
}
void on_trap(int signal, siginfo_t*, void*) {
  constexpr const char* kText =
      "cuda_on_cpu: a kernel touched memory at an address that its type does not allow\n";
  [[maybe_unused]] ssize_t written = ::write(2, kText, std::strlen(kText));
  sigaction(signal, &of_traps, nullptr);
}

// Installs on_fault again if the program has set a handler of its own, which does not know this
// memory.
void watch_faults() {
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault) return;
  of_faults = now;
  sigaction(SIGILL, nullptr, &of_traps);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  action.sa_sigaction = on_trap;
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes) : bytes_(bytes) {
  size_t rounded = (bytes + 255) / 256 * 256;
  length_ = (rounded + kPage - 1) / kPage * kPage + 2 * kPage;
  pages_ =
      static_cast<char*>(mmap(nullptr, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  data_ = pages_ + length_ - kPage - rounded;
  if (bytes < kLarge) {
    open(true);
    std::memset(data_, 0xff, bytes);
    open(false);
  }
  watch_memory(data_, bytes_, Memory::device);
}
GuardedMemory::~GuardedMemory() {
  forget_memory(data_);
  munmap(pages_, length_);
}
void GuardedMemory::open(bool opened) {
  is_open_ = opened;
  mprotect(pages_ + kPage, length_ - 2 * kPage, opened ? PROT_READ | PROT_WRITE : PROT_NONE);
}
bool GuardedMemory::holds(const void* address) const {
  auto* at = static_cast<const char*>(address);
  return at >= pages_ && at < pages_ + length_;
}
bool GuardedMemory::may_open(const void* address) const {
  auto* at = static_cast<const char*>(address);
  return at >= pages_ + kPage && at < pages_ + length_ - kPage;
}

Access::Access() {
  if (open_count++ == 0) watch_faults();
}
Access::~Access() {
  if (--open_count == 0)
    for (auto& [data, memory] : allocations())
      if (memory->is_open()) memory->open(false);
}

}  // namespace cuda_on_cpu

using cuda_on_cpu::Access;

namespace {
int device_in_use = 0;
}

namespace {
// Begin and end of each pinned host buffer.
std::map<const char*, const char*>& pinned() {
  static auto* all = new std::map<const char*, const char*>;
  return *all;
}
bool is_pinned(const void* address) {
  auto after = pinned().upper_bound(static_cast<const char*>(address));
  return after != pinned().begin() && address < std::prev(after)->second;
}
}  // namespace

bool cuda_on_cpu::on_device(const void* address) {
  for (auto& [data, memory] : allocations())
    if (memory->holds(address)) return true;
  return false;
}

// Returns one GPU, or the number in CUDA_ON_CPU_GPUS.
cudaError_t cudaGetDeviceCount(int* count) {
  const char* gpus = std::getenv("CUDA_ON_CPU_GPUS");
  *count = gpus ? std::atoi(gpus) : 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) {
  *index = device_in_use;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  device_in_use = index;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int index) {
  std::snprintf(out->uuid.bytes, sizeof out->uuid.bytes, "emulated %d", index);
  std::snprintf(out->name, sizeof out->name, "CUDA on the CPU");
  out->totalGlobalMem = size_t(1) << 33;
  out->multiProcessorCount = 4;
  const char* capability = std::getenv("CUDA_ON_CPU_CAPABILITY");  // 75 means 7.5
  out->major = capability ? std::atoi(capability) / 10 : 9;
  out->minor = capability ? std::atoi(capability) % 10 : 0;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t(1) << 33;
  for (const auto& [data, memory] : cuda_on_cpu::allocations()) *free -= memory->bytes();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** out, size_t bytes) {
  if (cudaError_t refused = cuda_on_cpu::unsafe_call(); refused != cudaSuccess) return refused;
  cuda_on_cpu::watch_faults();
  auto memory = std::make_unique<cuda_on_cpu::GuardedMemory>(bytes);
  *out = memory->data();
  cuda_on_cpu::allocations()[*out] = std::move(memory);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (cudaError_t refused = cuda_on_cpu::unsafe_call(); refused != cudaSuccess) return refused;
  cuda_on_cpu::wait_for_all();
  cuda_on_cpu::allocations().erase(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** out, size_t bytes) {
  if (cudaError_t refused = cuda_on_cpu::unsafe_call(); refused != cudaSuccess) return refused;
  *out = std::malloc(bytes);
  cuda_on_cpu::watch_memory(*out, bytes, cuda_on_cpu::Memory::host);
  pinned()[static_cast<char*>(*out)] = static_cast<char*>(*out) + bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  if (cudaError_t refused = cuda_on_cpu::unsafe_call(); refused != cudaSuccess) return refused;
  cuda_on_cpu::wait_for_all();
  cuda_on_cpu::forget_memory(memory);
  pinned().erase(static_cast<char*>(memory));
  std::free(memory);
  return cudaSuccess;
}
namespace {
void fill(void* memory, int value, size_t bytes) {
  Access access;
  cuda_on_cpu::writes(memory, bytes);
  auto* at = static_cast<char*>(memory);
  if (size_t head =
          (cuda_on_cpu::kPage - reinterpret_cast<uintptr_t>(memory) % cuda_on_cpu::kPage) %
          cuda_on_cpu::kPage;
      value == 0 && bytes > cuda_on_cpu::kLarge) {
    size_t middle = (bytes - head) / cuda_on_cpu::kPage * cuda_on_cpu::kPage;
    madvise(at + head, middle, MADV_DONTNEED);  // zero pages on the next touch
    std::memset(at, 0, head);
    at += head + middle;
    bytes -= head + middle;
  }
  std::memset(at, value, bytes);
}
}  // namespace
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return cuda_on_cpu::submit(stream, [=] { fill(memory, value, bytes); });
}
// A copy from or to pageable host memory is done when this returns, which no capture allows. A copy
// of pinned memory runs in its turn.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  bool waits = false;
  for (const void* end : {static_cast<const void*>(to), from})
    waits = waits || (!cuda_on_cpu::on_device(end) && !is_pinned(end));
  if (waits && stream && stream->capture)
    return cuda_on_cpu::invalidate(stream, cudaErrorStreamCaptureUnsupported);
  const cudaError_t status = cuda_on_cpu::submit(stream, [=] {
    Access access;
    cuda_on_cpu::reads(from, bytes);
    cuda_on_cpu::writes(to, bytes);
    std::memcpy(to, from, bytes);
  });
  if (waits) cuda_on_cpu::wait(stream);
  return status;
}
