// SPDX-License-Identifier: Apache-2.0
// Memory: a ledger of bytes per category, buffers that live as long as their owner, and the
// two-ended arena of forward and backward. Under plan nothing is allocated, so planned and real
// bytes come from the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "device/queue.hpp"

namespace device {

// Current and peak bytes per category ("weights", "gradients", "optimizer", "activations", ...).
class Ledger {
 public:
  struct Entry {
    int64_t now = 0, peak = 0;
  };
  void add(const std::string& category, int64_t bytes);
  const std::map<std::string, Entry>& entries() const { return entries_; }
  int64_t peak_of(const std::string& category) const;
  int64_t total_peak() const;

 private:
  std::map<std::string, Entry> entries_;
};

// Zero-filled memory, 64-byte aligned. Memory of kind cuda is on the GPU, and the host may not
// touch it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Kind kind, Ledger& ledger, std::string category, int64_t bytes);
  // Takes zero-filled memory of kind cpu that was made elsewhere, and shares its ownership.
  Buffer(Ledger& ledger, std::string category, std::shared_ptr<void> memory, int64_t bytes);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  View view(DType type) const { return {data_, type, bytes_ / size_of(type)}; }

 private:
  void swap(Buffer& other) noexcept;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Kind kind_ = Kind::cpu;
  Ledger* ledger_ = nullptr;
  std::string category_;
  std::shared_ptr<void> foreign_;  // null: the buffer made its memory
};

// Copy between host memory and memory of a queue's kind, in the queue's order. Both return when the
// host memory may be used: an upload has read it, a download has filled it. A download waits for
// the GPU; an upload does not (staging.hpp). On the CPU both are plain copies, or nothing if both
// memories are the same. Under plan nothing moves.
void upload(const View& to, const void* from, Queue& queue);
void download(void* to, const View& from, Queue& queue);
// Uploads from pinned memory, which may be reused when the queue has run the copy.
void upload_pinned(const View& to, const void* from, Queue& queue);
// Copies within memory of a queue's kind, in its order. The views must not overlap.
void copy(const View& to, const View& from, Queue& queue);

// Calls `read` with a view that the host can read. On the CPU it is the memory itself, elsewhere a
// copy in the queue's host scratch. Does nothing under plan.
template <class Read>
void read_on_host(const View& from, Queue& queue, Read read) {
  if (queue.kind() == Kind::plan) return;
  if (queue.kind() == Kind::cpu) return read(from);
  View host{queue.host_scratch(from.bytes()), from.type, from.count};
  download(host.data, from, queue);
  read(host);
}
// Calls `fill` with a view of the same size, which the host must fill, and uploads it.
template <class Fill>
void write_on_host(const View& to, Queue& queue, Fill fill) {
  if (queue.kind() == Kind::plan) return;
  if (queue.kind() == Kind::cpu) return fill(to);
  View host{queue.host_scratch(to.bytes()), to.type, to.count};
  fill(host);
  upload(to, host.data, queue);
}

// A stack with two ends. Saved tensors grow from the low end in forward and are popped in reverse
// in backward. Temporaries grow from the high end and are dropped at the end of each layer. A
// measuring arena has no memory and finds the exact peak = max(low + high).
class Arena {
 public:
  struct Mark {
    int64_t bytes;
  };
  Arena() = default;  // measuring
  Arena(Kind kind, Ledger& ledger, const std::string& category, int64_t bytes);

  View save(int64_t count, DType type = DType::f32);       // at the low end
  View temporary(int64_t count, DType type = DType::f32);  // at the high end
  Mark low() const { return {low_}; }
  Mark high() const { return {high_}; }
  void pop_low(Mark mark) {
    CHECK(mark.bytes <= low_);
    low_ = mark.bytes;
  }
  void pop_high(Mark mark) {
    CHECK(mark.bytes <= high_);
    high_ = mark.bytes;
  }
  int64_t peak() const { return peak_; }
  bool measuring() const { return capacity_ < 0; }

  // Drops the temporaries made since construction.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.high()) {}
    ~Scope() { arena_.high_ = mark_.bytes; }
    Scope(const Scope&) = delete;

   private:
    Arena& arena_;
    Mark mark_;
  };

 private:
  void note_peak();
  Buffer buffer_;
  char* base_ = reinterpret_cast<char*>(4096);  // never read while measuring
  int64_t capacity_ = -1;
  int64_t low_ = 0, high_ = 0, peak_ = 0;
};

}  // namespace device
