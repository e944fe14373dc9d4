// SPDX-License-Identifier: Apache-2.0
#include "device/queue.hpp"

#include <cstdlib>
#include <utility>

#include "base/narrow.hpp"
#include "device/gpu.hpp"
#include "device/memory.hpp"
#include "device/transfers.hpp"

namespace device {

const char* name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::f64:
      return "f64";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "?";
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::cpu:
      return "cpu";
    case Kind::cuda:
      return "cuda";
    case Kind::plan:
      return "plan";
  }
  return "?";
}

Queue::Queue(Kind kind, int threads, bool fixed_order, Kind planned_device)
    : kind_(kind),
      threads_(threads),
      fixed_order_(fixed_order),
      planned_device_(planned_device),
      scratch_{.memory{nullptr, Free{kind}}} {
  CHECK(threads >= 1);
  if (kind == Kind::cuda) stream_.reset(gpu::make_stream());
}

void Queue::FreeStream::operator()(void* stream) const { gpu::free_stream(stream); }

void Queue::set_tf32(bool tf32) {
  CHECK(!tf32 || kind_ != Kind::cpu, "CPUs cannot round the operands of products to tf32");
  tf32_ = tf32;
}

void Queue::synchronize(const char* what) {
  if (!stream_) return;
  CHECK(!recording_, "the host waits while a graph is recorded: {}", what);
  count_wait(what);
  gpu::wait_for_stream(stream_.get());
}

void Queue::Free::operator()(void* p) const {
  if (kind == Kind::cuda)
    gpu::release(p);
  else
    std::free(p);
}

void Queue::grow_scratch(size_t bytes) {
  const size_t before = std::exchange(scratch_.bytes, size_t(base::round_up(int64_t(bytes), 4096)));
  if (scratch_.ledger && device() == Kind::cuda)
    scratch_.ledger->add("scratch", int64_t(scratch_.bytes - before));
}

void Queue::need_scratch(size_t bytes) {
  if (bytes > scratch_.bytes) grow_scratch(bytes);
}

void* Queue::scratch(size_t bytes) {
  if (bytes > scratch_.bytes) {
    grow_scratch(bytes);
    MayWait lifted;
    synchronize("more scratch for ops");  // pending ops may still use it
    scratch_.memory.reset();              // frees the old memory first; its contents are not needed
    // Scratch begins at a page: small products lost a quarter of their speed at other places.
    scratch_.memory.reset(kind_ == Kind::cuda ? gpu::allocate(scratch_.bytes)
                                              : std::aligned_alloc(4096, scratch_.bytes));
    if (!scratch_.memory)
      base::fail(base::Exit::internal, "out of memory: {} bytes of op scratch", scratch_.bytes);
  }
  return scratch_.memory.get();
}

void* Queue::host_scratch(int64_t bytes) {
  if (bytes > scratch_.host.bytes()) scratch_.host = HostBuffer(kind_, bytes);
  return scratch_.host.data();
}

}  // namespace device
