// SPDX-License-Identifier: Apache-2.0
// Copies between host and GPU that do not hold the host: through pinned memory, in a queue's order.
// On the CPU they are plain copies.
#pragma once

#include <array>
#include <cstdint>

#include "device/host_buffer.hpp"
#include "device/types.hpp"

namespace device {

class Queue;

// A point in a queue that another queue or the host can wait for. On the CPU all work before it is
// already done. A wait for an event that was never recorded returns at once.
class Event {
 public:
  void record(Queue& queue);
  // Later work of `queue` runs after the point.
  void wait(Queue& queue) const;
  void synchronize(const char* what) const;  // the host waits; `what` is for messages

 private:
  struct Free {
    void operator()(void* event) const;
  };
  std::unique_ptr<void, Free> event_;
};

// Uploads of a queue of kind cuda. Data is staged in one of a few chunks of pinned memory until it
// has been copied. The host waits only if the copies of all chunks are pending.
class UploadRing {
 public:
  void upload(void* to, const void* from, int64_t bytes, Queue& queue);

 private:
  static constexpr int64_t kChunkBytes = 2 << 20;
  struct Chunk {
    HostBuffer memory;
    Event used;  // the last copy out of the chunk
  };
  std::array<Chunk, 4> chunks_;
  size_t chunk_ = 0;
  int64_t filled_ = 0;  // bytes of the current chunk
};

// Results of ops that the host reads later. `fetch` puts a copy into the queue, `read` waits for
// that copy. There are two slots, so that one copy can be pending while the host reads the other.
class Fetched {
 public:
  Fetched() = default;
  Fetched(Kind kind, int64_t bytes);  // `bytes` is the largest fetch
  void fetch(int64_t turn, const View& from, Queue& queue);
  // Returns the last copy of this turn. Turns alternate between the slots, so the memory is reused
  // two turns later.
  View read(int64_t turn);

 private:
  struct Turn {
    HostBuffer memory;
    View view;
    Event arrived;
  };
  std::array<Turn, 2> turns_;
};

}  // namespace device
