// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on the CPU. Every CUDA thread of a block is a fiber, and blocks run one after the
// other. At a barrier or a shuffle a fiber gives way. Cases that CUDA leaves undefined are errors
// here: threads of a block at different barriers, threads that ended while others wait, and lanes
// missing from a shuffle. CUDA_ON_CPU_ORDER=reverse runs threads and blocks from the last to the
// first, so a missing barrier changes results. With CUDA_ON_CPU_COUNT=1 the program prints the
// number of launches at its end.
#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "memory.hpp"

namespace cuda_on_cpu {

Place place;
int64_t launches = 0;

namespace {

constexpr size_t kStack = 128 * 1024;

struct Fiber {
  enum State { ready, at_block, at_warp, done };
  State state = done;
  const char* file = "";  // of the barrier at which the fiber waits
  int line = 0;
  // values of the last two shuffles; readers of the older one may not have run yet
  uint64_t exchanged[2] = {0, 0};
  int turn = 0;
  dim3 thread;
  bool started = false;
  jmp_buf point;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;  // kept between launches
  size_t count = 0;
  Fiber* running = nullptr;
  size_t running_index = 0;
  const std::function<void()>* body = nullptr;
  jmp_buf scheduler;
  ucontext_t scheduler_context;
  bool reverse = false;
  std::unique_ptr<GuardedMemory> shared;
};
Block b;

const struct Count {
  ~Count() {
    if (std::getenv("CUDA_ON_CPU_COUNT"))
      std::fprintf(stderr, "cuda_on_cpu: %lld launches\n", static_cast<long long>(launches));
  }
} count_at_end;

void give_way(Fiber::State state) {
  Fiber* self = b.running;
  self->state = state;
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&self->context, &b.scheduler_context);
#else
  if (_setjmp(self->point) == 0) _longjmp(b.scheduler, 1);
#endif
}

void fiber_main() {
  for (;;) {
    (*b.body)();
    give_way(Fiber::done);
  }
}

void enter(size_t index) {
  Fiber& f = *b.fibers[index];
  b.running = &f;
  b.running_index = index;
  f.state = Fiber::ready;
  place.thread = f.thread;
  bool first = !f.started;
  if (first) {
    f.started = true;
    f.stack = std::make_unique<char[]>(kStack);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = kStack;
    f.context.uc_link = nullptr;
    makecontext(&f.context, fiber_main, 0);
  }
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&b.scheduler_context, &f.context);
#else
  if (_setjmp(b.scheduler) == 0) {
    if (first)
      setcontext(&f.context);
    else
      _longjmp(f.point, 1);
  }
#endif
  b.running = nullptr;
}

std::string describe(size_t index) {
  const Fiber& f = *b.fibers[index];
  std::string where =
      "thread " + std::to_string(index) + " of block " + std::to_string(place.block.x);
  if (f.state == Fiber::done) return where + " has ended";
  return where + " waits at " + f.file + ":" + std::to_string(f.line);
}

// Releases the fibers of [begin, end) if all of them are in `state` at the same line.
bool release(size_t begin, size_t end, Fiber::State state) {
  for (size_t i = begin; i < end; ++i)
    if (b.fibers[i]->state == Fiber::ready ||
        (b.fibers[i]->state != state && b.fibers[i]->state != Fiber::done))
      return false;
  for (size_t i = begin; i < end; ++i) {
    const Fiber &f = *b.fibers[i], &first = *b.fibers[begin];
    if (f.state != state || f.line != first.line || std::string(f.file) != first.file)
      throw std::runtime_error("threads part at a barrier: " + describe(begin) + ", " +
                               describe(i));
  }
  for (size_t i = begin; i < end; ++i) b.fibers[i]->state = Fiber::ready;
  return true;
}

void run_block() {
  size_t n = b.count;
  for (size_t i = 0; i < n; ++i) b.fibers[i]->state = Fiber::ready;
  for (;;) {
    bool any = false;
    for (size_t k = 0; k < n; ++k) {
      size_t i = b.reverse ? n - 1 - k : k;
      if (b.fibers[i]->state == Fiber::ready) {
        enter(i);
        any = true;
      }
    }
    size_t ended = 0, waiting_for_block = 0;
    for (size_t i = 0; i < n; ++i) {
      ended += b.fibers[i]->state == Fiber::done;
      waiting_for_block += b.fibers[i]->state == Fiber::at_block;
    }
    if (ended == n) return;
    bool moved = waiting_for_block > 0 && release(0, n, Fiber::at_block);
    for (size_t w = 0; w < n && !moved; w += 32) {
      size_t end = std::min(n, w + 32);
      bool at_warp = false;
      for (size_t i = w; i < end; ++i) at_warp = at_warp || b.fibers[i]->state == Fiber::at_warp;
      if (at_warp) any = release(w, end, Fiber::at_warp) || any;
    }
    if (!any && !moved)
      throw std::runtime_error("threads wait for each other: " + describe(0) + ", " +
                               describe(n - 1));
  }
}

}  // namespace

int lane() { return int(b.running_index % 32); }
void* dynamic_shared() { return b.shared ? b.shared->data() : nullptr; }

void wait_for_block(const char* file, int line) {
  b.running->file = file;
  b.running->line = line;
  give_way(Fiber::at_block);
}

uint64_t exchange(uint64_t value, int from, const char* file, int line) {
  Fiber* self = b.running;
  size_t index = b.running_index;
  self->turn ^= 1;
  int turn = self->turn;
  self->exchanged[turn] = value;
  self->file = file;
  self->line = line;
  give_way(Fiber::at_warp);
  size_t other = index / 32 * 32 + size_t(from);
  if (from < 0 || from >= 32 || other >= b.count) std::abort();
  return b.fibers[other]->exchanged[turn];
}

void launch(dim3 grid, dim3 block, size_t dynamic_shared_bytes,
            const std::function<void()>& thread) {
  size_t count = size_t(block.x) * block.y * block.z;
  if (count == 0 || count > 1024 || block.z > 64 || grid.y > 65535 || grid.z > 65535 ||
      dynamic_shared_bytes > 227 * 1024)
    throw std::runtime_error("a launch that no GPU takes: " + std::to_string(count) + " threads, " +
                             std::to_string(dynamic_shared_bytes) + " bytes of shared memory");
  ++launches;
  const char* order = std::getenv("CUDA_ON_CPU_ORDER");
  b.reverse = order && std::string(order) == "reverse";
  while (b.fibers.size() < count) b.fibers.push_back(std::make_unique<Fiber>());
  b.count = count;
  b.body = &thread;
  place.grid = grid;
  place.block_size = block;
  b.shared = dynamic_shared_bytes ? std::make_unique<GuardedMemory>(dynamic_shared_bytes) : nullptr;
  if (b.shared) b.shared->open(true);
  for (size_t i = 0; i < count; ++i) {
    Fiber& f = *b.fibers[i];
    f.turn = 0;
    f.thread = dim3(unsigned(i % block.x), unsigned(i / block.x % block.y),
                    unsigned(i / block.x / block.y));
  }
  Access access;
  size_t blocks = size_t(grid.x) * grid.y * grid.z;
  for (size_t k = 0; k < blocks; ++k) {
    size_t i = b.reverse ? blocks - 1 - k : k;
    place.block =
        dim3(unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y));
    if (b.shared) std::memset(b.shared->data(), 0xff, dynamic_shared_bytes);  // NaN
    try {
      run_block();
    } catch (...) {
      b.fibers.clear();  // some fibers are in the middle of the kernel
      throw;
    }
  }
}

}  // namespace cuda_on_cpu
