// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on the CPU. CUDA threads run on fibers, and blocks run one after the other. At a
// barrier or a shuffle a thread yields to the others. Cases that CUDA leaves undefined are errors
// here: threads of a block at different barriers, threads that ended while others wait, and lanes
// missing from a shuffle. With a missing barrier, results depend on the order of threads.
// CUDA_ON_CPU_ORDER=reverse runs threads and blocks from the last to the first.
// CUDA_ON_CPU_ORDER=random draws a new order, with CUDA_ON_CPU_SEED, for each block and after each
// barrier. With CUDA_ON_CPU_COUNT=1 the program prints the number of launches at its end. Block
// barriers that CUDA_ON_CPU_NO_BARRIER names do nothing. This shows whether the search for races
// notices that they are missing.
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"
#include "memory.hpp"
#include "order.hpp"
#include "shared_memory.hpp"
#include "watch.hpp"

namespace cuda_on_cpu {

Place place;
int64_t launches = 0;

namespace {

constexpr size_t kStack = 128 * 1024;

// A stack on which CUDA threads run, one after the other until one of them waits.
struct Fiber {
  bool started = false;
  void* point[5];  // of GCC's __builtin_setjmp
  ucontext_t context;
  std::unique_ptr<char[]> stack;
};

struct Thread {
  enum State { ready, at_block, at_warp, done };
  State state = done;
  const char* file = "";  // of the barrier at which the thread waits
  int line = 0;
  // values of the last two shuffles; readers of the older one may not have run yet
  uint64_t exchanged[2] = {0, 0};
  int turn = 0;
  bool at_barrier = false;  // waits for its warp at a barrier, not at a shuffle
  dim3 index;
  Fiber* fiber = nullptr;  // from its first instruction to its last
};

struct Block {
  std::vector<Thread> threads;
  std::vector<std::unique_ptr<Fiber>> fibers;  // kept between launches
  std::vector<Fiber*> idle;                    // fibers without a thread
  size_t count = 0;                            // threads of the block
  size_t turns = 0;                            // threads that had their turn in this pass
  Thread* running = nullptr;
  const std::function<void()>* body = nullptr;
  Fiber scheduler;
  Order order;
  GuardedMemory* shared = nullptr;
};
Block b;

// Dynamic shared memory of this size. Launches reuse it, because mapping new pages takes longer
// than many kernels.
GuardedMemory& shared_of(size_t bytes) {
  static auto* all = new std::map<size_t, std::unique_ptr<GuardedMemory>>;
  std::unique_ptr<GuardedMemory>& memory = (*all)[bytes];
  if (!memory) {
    memory = std::make_unique<GuardedMemory>(bytes);
    memory->open(true);
    watch_memory(memory->data(), bytes, Memory::shared);
  }
  return *memory;
}

const struct Count {
  ~Count() {
    if (std::getenv("CUDA_ON_CPU_COUNT"))
      std::fprintf(stderr, "cuda_on_cpu: %lld launches\n", static_cast<long long>(launches));
  }
} count_at_end;

// Returns the next thread of this pass that can go on, or null at the end of the pass.
Thread* next_ready() {
  while (b.turns < b.count) {
    Thread& t = b.threads[b.order.at(b.turns++)];
    if (t.state == Thread::ready) return &t;
  }
  return nullptr;
}

void run_here(Thread* t) {
  b.running = t;
  place.thread = t->index;
  running.number = uint16_t(t - b.threads.data());
}

void fiber_main();

Fiber* idle_fiber() {
  if (b.idle.empty()) {
    b.fibers.push_back(std::make_unique<Fiber>());
    b.idle.push_back(b.fibers.back().get());
  }
  Fiber* f = b.idle.back();
  b.idle.pop_back();
  return f;
}

// The C library's longjmp costs several times as much, because it looks at cleanups and signals.
[[noreturn, gnu::noinline]] void jump(void** point) { __builtin_longjmp(point, 1); }

// Continues `to`, or begins it. Returns when something continues `from`.
[[gnu::noinline]] void leave(Fiber& from, Fiber& to, bool begins) {
#ifdef __SANITIZE_ADDRESS__
  (void)begins;
  swapcontext(&from.context, &to.context);
#else
  if (__builtin_setjmp(from.point) != 0) return;
  if (begins)
    setcontext(&to.context);
  else
    jump(to.point);
#endif
}

void make_stack(Fiber& f) {
  f.started = true;
  f.stack = std::make_unique_for_overwrite<char[]>(kStack);  // its pages stay untouched
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.get();
  f.context.uc_stack.ss_size = kStack;
  f.context.uc_link = nullptr;
  makecontext(&f.context, fiber_main, 0);
}

// Leaves `from` for the fiber of `to`, or for the scheduler if `to` is null. Returns when something
// switches to `from`.
void switch_from(Fiber& from, Thread* to) {
  if (!to) return leave(from, b.scheduler, false);
  if (!to->fiber) to->fiber = idle_fiber();
  run_here(to);
  const bool begins = !to->fiber->started;
  if (begins) make_stack(*to->fiber);
  leave(from, *to->fiber, begins);
}

void give_way(Thread::State state) {
  b.running->state = state;
  switch_from(*b.running->fiber, next_ready());
}

// Threads that never wait run here one after the other, without a switch of fibers.
void fiber_main() {
  for (;;) {
    (*b.body)();
    Fiber* self = std::exchange(b.running->fiber, nullptr);
    b.running->state = Thread::done;
    Thread* next = next_ready();
    if (next && !next->fiber) {
      next->fiber = self;
      run_here(next);
      continue;
    }
    b.idle.push_back(self);
    switch_from(*self, next);
  }
}

std::string describe(size_t index) {
  const Thread& t = b.threads[index];
  std::string where =
      "thread " + std::to_string(index) + " of block " + std::to_string(place.block.x);
  if (t.state == Thread::done) return where + " has ended";
  return where + " waits at " + t.file + ":" + std::to_string(t.line);
}

// True if CUDA_ON_CPU_NO_BARRIER names this barrier, as "layer_norm.cu" or "layer_norm.cu:150".
bool is_left_out(const char* file, int line) {
  static const char* const named = std::getenv("CUDA_ON_CPU_NO_BARRIER");
  if (!named) return false;
  const char* slash = std::strrchr(file, '/');
  const std::string name = slash ? slash + 1 : file;
  return named == name || named == name + ":" + std::to_string(line);
}

// Releases the threads of [begin, end) if all of them are in `state` at the same line.
bool release(size_t begin, size_t end, Thread::State state) {
  for (size_t i = begin; i < end; ++i)
    if (b.threads[i].state == Thread::ready ||
        (b.threads[i].state != state && b.threads[i].state != Thread::done))
      return false;
  for (size_t i = begin; i < end; ++i) {
    const Thread &t = b.threads[i], &first = b.threads[begin];
    if (t.state != state || t.line != first.line ||
        (t.file != first.file && std::strcmp(t.file, first.file) != 0))
      throw std::runtime_error("threads part at a barrier: " + describe(begin) + ", " +
                               describe(i));
  }
  if (state == Thread::at_block)
    running.pass_barrier();
  else if (b.threads[begin].at_barrier)
    ++running.warp_barriers[begin / 32];
  for (size_t i = begin; i < end; ++i) b.threads[i].state = Thread::ready;
  return true;
}

void run_block() {
  size_t n = b.count;
  for (size_t i = 0; i < n; ++i) b.threads[i].state = Thread::ready;
  running.begin_block();
  for (;;) {
    b.turns = 0;
    b.order.begin(n);
    Thread* const begins = next_ready();
    in_kernel = watches();
    if (begins) switch_from(b.scheduler, begins);
    in_kernel = false;
    b.running = nullptr;
    bool any = begins != nullptr;
    size_t ended = 0, waiting_for_block = 0;
    for (size_t i = 0; i < n; ++i) {
      ended += b.threads[i].state == Thread::done;
      waiting_for_block += b.threads[i].state == Thread::at_block;
    }
    if (ended == n) return;
    bool moved = waiting_for_block > 0 && release(0, n, Thread::at_block);
    for (size_t w = 0; w < n && !moved; w += 32) {
      size_t end = std::min(n, w + 32);
      bool at_warp = false;
      for (size_t i = w; i < end; ++i) at_warp = at_warp || b.threads[i].state == Thread::at_warp;
      if (at_warp) any = release(w, end, Thread::at_warp) || any;
    }
    if (!any && !moved)
      throw std::runtime_error("threads wait for each other: " + describe(0) + ", " +
                               describe(n - 1));
  }
}

}  // namespace

int lane() { return int((b.running - b.threads.data()) % 32); }
void* dynamic_shared() { return b.shared ? b.shared->data() : nullptr; }

void wait_for_block(const char* file, int line) {
  if (is_left_out(file, line)) return;
  b.running->file = file;
  b.running->line = line;
  give_way(Thread::at_block);
}

void wait_for_warp(const char* file, int line) {
  b.running->at_barrier = true;
  exchange(0, 0, file, line);
  b.running->at_barrier = false;
}

uint64_t exchange(uint64_t value, int from, const char* file, int line) {
  Thread* self = b.running;
  const size_t index = size_t(self - b.threads.data());
  self->turn ^= 1;
  int turn = self->turn;
  self->exchanged[turn] = value;
  self->file = file;
  self->line = line;
  give_way(Thread::at_warp);
  size_t other = index / 32 * 32 + size_t(from);
  if (from < 0 || from >= 32 || other >= b.count) std::abort();
  return b.threads[other].exchanged[turn];
}

void launch(dim3 grid, dim3 block, size_t dynamic_shared_bytes, const void* kernel,
            const std::function<void()>& thread) {
  const size_t count = size_t(block.x) * block.y * block.z;
  ++launches;
  b.order = Order();
  if (b.threads.size() < count) b.threads.resize(count);
  b.count = count;
  b.body = &thread;
  place.grid = grid;
  place.block_size = block;
  b.shared = dynamic_shared_bytes ? &shared_of(dynamic_shared_bytes) : nullptr;
  running.begin_launch(kernel);
  for (size_t i = 0; i < count; ++i) {
    Thread& t = b.threads[i];
    t.turn = 0;
    t.index = dim3(unsigned(i % block.x), unsigned(i / block.x % block.y),
                   unsigned(i / block.x / block.y));
  }
  Access access;
  StaticShared statics;
  const size_t blocks = size_t(grid.x) * grid.y * grid.z;
  Order of_blocks = b.order;
  of_blocks.begin(blocks);
  for (size_t k = 0; k < blocks; ++k) {
    const size_t i = of_blocks.at(k);
    place.block =
        dim3(unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y));
    if (b.shared) std::memset(b.shared->data(), 0xff, dynamic_shared_bytes);  // NaN
    statics.before_block(k);
    try {
      run_block();
    } catch (...) {
      // Some threads are in the middle of the kernel, on their fibers.
      b.threads.clear();
      b.idle.clear();
      b.fibers.clear();
      throw;
    }
  }
}

}  // namespace cuda_on_cpu
