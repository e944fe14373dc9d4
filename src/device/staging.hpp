// SPDX-License-Identifier: Apache-2.0
// How numbers cross between host and GPU without holding the host: through pinned memory, in a
// queue's order. On the CPU they are plain copies.
#pragma once

#include <array>
#include <cstdint>

#include "device/host_buffer.hpp"
#include "device/types.hpp"

namespace device {

class Queue;

// A point in a queue that another queue (or the host) can wait for. On the CPU all work before it
// is done already. Waiting for one that was never recorded returns at once.
class Event {
 public:
  void record(Queue& queue);
  // what is put into `queue` from now on runs after the point
  void wait(Queue& queue) const;
  void synchronize(const char* what) const;  // the host waits for `what`

 private:
  struct Free {
    void operator()(void* event) const;
  };
  std::unique_ptr<void, Free> event_;
};

// Uploads of a queue of kind cuda: what is to go lies in one of a few chunks of pinned memory until
// it has been copied. The host waits only where the GPU is all chunks behind.
class UploadRing {
 public:
  void upload(void* to, const void* from, int64_t bytes, Queue& queue);

 private:
  static constexpr int64_t kChunkBytes = 2 << 20;
  struct Chunk {
    HostBuffer memory;
    Event used;  // the last copy out of it
  };
  std::array<Chunk, 4> chunks_;
  size_t chunk_ = 0;
  int64_t filled_ = 0;  // of the chunk in use
};

// What ops have made, for the host to read later: `fetch` puts a copy into the queue, `read` waits
// for that copy. Two turns, so that the next may be under way while the host reads one.
class Fetched {
 public:
  Fetched() = default;
  Fetched(Kind kind, int64_t bytes);  // at most so many
  void fetch(int64_t turn, const View& from, Queue& queue);
  // The copy that was fetched last in a turn as even or odd as this; its memory is used again two
  // turns later.
  View read(int64_t turn);

 private:
  struct Turn {
    HostBuffer memory;
    View view;
    Event there;
  };
  std::array<Turn, 2> turns_;
};

}  // namespace device
